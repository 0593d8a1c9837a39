"""The model zoo: sizes against hand formulas, the image rule, the adapters, and use as pure functions."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.flop_counter import FlopCounterMode

from atoll import models
from atoll.errors import AtollError
from atoll.models.mobilenet import paper_block
from atoll.models.resnet import basic
from atoll.models.shufflenet import UnitV2, shuffle

CIFAR, MNIST, DIGITS, TINY = (3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 64)
CNNS = ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5"]
IMAGE = [name for name in models.names() if "image" in models.kinds(name)]
NORMALISED = [name for name in models.names() if "track_running_stats" in models.options(name)]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def count(name: str, shape: tuple[int, ...] = CIFAR, classes: int = 10, **options: object) -> int:
    with torch.device("meta"):
        return size(models.build(name, shape, classes, **options))


def macs(net: nn.Module, shape: tuple[int, ...]) -> int:
    """The counter knows a multiplication and an addition; one of each is a MAC."""
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, *shape))
    return counter.get_total_flops() // 2


# Sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "classes", "options", "expected"),
    [
        (CIFAR, 10, {}, [2_621_558, 1_815_142, 1_320_558, 1_060_358, 670_058]),
        (CIFAR, 100, {}, [2_666_648, 1_860_232, 1_365_648, 1_105_448, 715_148]),
        (MNIST, 10, {}, [2_620_758, 1_814_342, 1_319_758, 1_059_558, 669_258]),
        (MNIST, 10, {"native28": True}, [2_044_758, 1_526_342, 1_031_758, 829_158, 525_258]),
    ],
)
def test_numbered_cnns_have_the_published_sizes(shape, classes, options, expected):
    """CNN-1 on CIFAR-10: 16*76 + 32*401 + 2000*801 + 500*2001 + 10*501 = 2,621,558.

    MNIST padded to 32 loses 2*25*16 = 800 weights of the first convolution; as it is (flatten 512) another 2000*288.
    """
    assert [count(name, shape, classes, **options) for name in CNNS] == expected


@pytest.mark.parametrize(("classes", "more"), [(10, 0), (100, 45_000)])
def test_numbered_cnns_need_the_published_work(classes, more):
    """CNN-1: 28*28*16*75 + 10*10*32*400 + 800*2000 + 2000*500 + 500*10 = 4,825,800 MACs; 90 classes more add 45,000."""
    expected = [4_825_800, 3_385_800, 3_525_800, 3_265_800, 2_875_800]
    assert [macs(models.build(name, CIFAR, classes), CIFAR) for name in CNNS] == [work + more for work in expected]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("lenet", CIFAR, 10, 6 * 76 + 16 * 151 + 120 * 401 + 84 * 121 + 10 * 85),  # 62,006
        ("feddw_mnist", MNIST, 10, 10 * 26 + 20 * 251 + 256 * 321 + 128 * 257 + 10 * 129),  # 121,642
        ("feddw_fmnist", MNIST, 62, 16 * 28 + 32 * 403 + 256 * 1569 + 128 * 257 + 62 * 129),  # 2 more each: BatchNorm
        ("feddw_cifar", CIFAR, 10, 6 * 76 + 16 * 151 + 256 * 401 + 128 * 257 + 10 * 129),  # 139,714
        ("cnn_a", MNIST, 10, 16 * 26 + 32 * 401 + 128 * 513 + 10 * 129),  # 80,202
        ("small_cnn", MNIST, 10, 16 * 26 + 32 * 401 + 128 * 513 + 10 * 129),
        ("small_cnn", DIGITS, 10, 16 * 26 + 32 * 401 + 128 * 33 + 10 * 129),  # 8 -> 16 -> 12, 6, 2, 1
        ("cnn_b", MNIST, 10, 32 * 10 + 32 * 289 + 64 * 289 + 128 * (64 * 49 + 1) + 10 * 129),
        ("server_cnn", MNIST, 84, 32 * 10 + 64 * 289 + 128 * 577 + 128 * 1153 + 256 * (128 * 9 + 1) + 84 * 257),
        ("mlp", DIGITS, 10, 64 * 65 + 10 * 65),
        ("mlp_a", MNIST, 10, 256 * 785 + 128 * 257 + 10 * 129),
        ("mlp_b", MNIST, 10, 512 * 785 + 256 * 513 + 128 * 257 + 10 * 129),
        ("linear", DIGITS, 10, 10 * 65),
        ("bilstm", (200,), 2, 1_280_000 + 2 * 4 * 128 * (256 + 2) + 128 * 257 + 128 * 129 + 2 * 129),  # 1,593,858
    ],
)
def test_plain_networks_have_the_sizes_of_their_layers(name, shape, classes, expected):
    """A layer of n outputs and m inputs has n(m + 1); an LSTM direction four gates of (input + hidden + 2 biases)."""
    assert count(name, shape, classes) == expected


def basic_block(i: int, o: int, stride: int, bias: int = 0) -> int:
    shortcut = i * o + (2 + bias) * o if stride != 1 or i != o else 0
    return 9 * i * o + 9 * o * o + 2 * (2 + bias) * o + shortcut


def bottleneck_block(i: int, w: int, stride: int, bias: int = 0) -> int:
    shortcut = 4 * i * w + 8 * w if stride != 1 or i != 4 * w else 0
    return i * w + 9 * w * w + 4 * w * w + 2 * w + 2 * w + 8 * w + shortcut


def resnet(depths: list[int], block=basic_block, expansion: int = 1, bias: int = 0) -> int:
    """Stem and stages of a residual network; BatchNorm has two numbers per channel, a convolution's bias one."""
    total, i = 27 * 64 + (2 + bias) * 64, 64
    for stage, depth in enumerate(depths):
        for place in range(depth):
            total += block(i, 64 * 2**stage, 2 if stage and place == 0 else 1, bias)
            i = expansion * 64 * 2**stage
    return total


def test_residual_networks_have_the_sizes_of_their_layers():
    """ResNet-18: stem 1,856; stages 147,968 + 525,568 + 2,099,712 + 8,393,728; head 5,130; together 11,173,962."""
    assert count("resnet18") == resnet([2, 2, 2, 2]) + 5_130 == 11_173_962
    assert count("resnet34") == resnet([3, 4, 6, 3]) + 5_130 == 21_282_122
    assert count("resnet50") == resnet([3, 4, 6, 3], bottleneck_block, 4) + 20_490 == 23_520_842
    mapping = 256 * 513 + 128 * 257 + 10 * 129
    assert count("feddw_resnet18") == resnet([2, 2, 2, 2], bias=1) + mapping == 11_339_146


def inverted(i: int, o: int, t: int, stride: int, feddw: bool) -> int:
    e = t * i
    expand = i * e + 2 * e if t > 1 or feddw else 0
    shortcut = i * o + 2 * o if feddw and stride == 1 and i != o else 0
    return expand + 9 * e + 2 * e + e * o + 2 * o + shortcut


def mobilenet(shrink: int, feddw: bool) -> int:
    total, i = 27 * 32 + 64, 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for t, width, blocks, stride in stages:
        for place in range(blocks):
            total += inverted(i, width // shrink, t, 1 if place else stride, feddw)
            i = width // shrink
    return total + i * 1280 // shrink + 2 * 1280 // shrink


def test_mobilenets_have_the_sizes_of_their_layers():
    """MobileNetV2 has 3,504,872 parameters with 1000 classes: 10 classes have 990*1281 fewer, 2,236,682.

    FedDW's halves all widths but the stem's, expands by 1 with a convolution too and projects shortcuts.
    """
    assert count("mobilenetv2") == mobilenet(1, False) + 12_810 == 3_504_872 - 990 * 1281 == 2_236_682
    mapping = 256 * 641 + 128 * 257 + 10 * 129
    assert count("feddw_mobilenetv2") == mobilenet(2, True) + mapping == 796_050


def shuffle_v2_stage(i: int, b: int, units: int) -> int:
    """First unit: 9i+2i+ib+2b beside ib+2b+9b+2b+b^2+2b. Others, on half of the channels: 2b^2+15b."""
    return (11 * i + 2 * i * b + b * b + 17 * b) + (units - 1) * (2 * b * b + 15 * b)


def shuffle_v1_unit(i: int, added: int, g: int) -> int:
    h = added // 4
    return i * h // g + 2 * h + 9 * h + 2 * h + h * added // 2 + 2 * added


def test_shufflenets_have_the_sizes_of_their_layers():
    """V2: 696 + 30,192 + 244,180 + 501,352 + 477,184 + 10,250 = 1,263,854 (2,278,604 with 1000 classes)."""
    stages = shuffle_v2_stage(24, 58, 4) + shuffle_v2_stage(116, 116, 8) + shuffle_v2_stage(232, 232, 4)
    assert count("shufflenetv2") == 696 + stages + 464 * 1024 + 2048 + 10_250 == 2_278_604 - 990 * 1025 == 1_263_854
    v1 = 3 * 24 + 48 + shuffle_v1_unit(24, 176, 1) + 3 * shuffle_v1_unit(200, 200, 2)
    v1 += shuffle_v1_unit(200, 200, 2) + 7 * shuffle_v1_unit(400, 400, 2)
    v1 += shuffle_v1_unit(400, 400, 2) + 3 * shuffle_v1_unit(800, 800, 2)
    assert count("feddw_shufflenet") == v1 + 256 * 801 + 128 * 257 + 10 * 129 == 1_118_814


def test_architectures_have_the_expected_feature_widths():
    widths = {name: models.feature_dim(models.build(name, DIGITS, 3)) for name in ("cnn1", "lenet", "mlp", "linear")}
    assert widths == {"cnn1": 500, "lenet": 84, "mlp": 64, "linear": 64}
    rows = {row.name: row.features for row in models.catalogue()}
    assert [rows[n] for n in ("resnet18", "resnet34", "resnet50")] == [512, 512, 2048]
    assert [rows[n] for n in ("mobilenetv2", "shufflenetv2", "server_cnn", "bilstm")] == [1280, 1024, 256, 128]
    assert {rows[n] for n in rows if n.startswith("feddw_") or n in ("mlp_a", "mlp_b", "cnn_a", "cnn_b")} == {128}


# The contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMAGE)
def test_every_image_model_runs_on_every_image_set(name):
    for shape in (DIGITS, MNIST, CIFAR, TINY):
        net = models.build(name, shape, 7).eval()
        x = torch.randn(2, *shape)
        with torch.no_grad():
            features = net.body(x)
            logits = net(x)
            torch.testing.assert_close(logits, net.head(features))
        assert features.shape == (2, models.feature_dim(net))
        assert logits.shape == (2, 7)


@pytest.mark.parametrize("name", IMAGE)
def test_every_parameter_learns(name):
    net = models.build(name, DIGITS, 3)
    net(torch.randn(4, *DIGITS)).square().sum().backward()
    idle = [key for key, parameter in net.named_parameters() if parameter.grad is None]
    assert not idle


def test_batch_of_one_keeps_its_axis():
    assert models.build("resnet18", DIGITS, 3)(torch.randn(1, *DIGITS)).shape == (1, 3)


@pytest.mark.parametrize("name", NORMALISED)
def test_batch_norm_without_running_statistics_has_no_buffers(name):
    assert list(models.build(name, DIGITS, 2).buffers())
    assert not list(models.build(name, DIGITS, 2, track_running_stats=False).buffers())


def test_head_bias_false_gives_a_head_without_bias():
    net = models.build("mlp", (5,), 3, head_bias=False)
    assert [key for key, _ in net.named_parameters()] == ["body.fc1.weight", "body.fc1.bias", "head.weight"]


def test_torch_seed_decides_weights_and_catalogue_draws_no_numbers():
    def weights() -> list[Tensor]:
        torch.manual_seed(3)
        models.catalogue()
        return list(models.build("cnn5", MNIST, 10).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))
    torch.manual_seed(3)
    alone = models.build("cnn5", MNIST, 10)
    assert torch.equal(alone.head.weight, weights()[-2])


def test_table_has_one_line_for_each_model():
    head, *lines = models.table().splitlines()
    assert head.split() == ["model", "parameters", "features", "about"]
    assert [line.split()[0] for line in lines] == models.names()
    assert next(line for line in lines if line.startswith("cnn1 ")).split()[1:3] == ["2,621,558", "500"]
    assert all(models.describe(name) and "\n" not in models.describe(name) for name in models.names())


def test_mlp_hidden_option_sets_the_layer_widths():
    assert count("mlp", (4,), 2, hidden=[3, 5]) == 3 * 5 + 5 * 4 + 2 * 6
    assert count("mlp", (4,), 2, hidden=3) == 3 * 5 + 2 * 4
    with pytest.raises(AtollError, match="whole numbers above 0"):
        models.build("mlp", (4,), 2, hidden=[0])


def test_build_names_the_wrong_argument():
    with pytest.raises(AtollError, match=r"Unknown model 'resnet81'. Did you mean 'resnet18'"):
        models.build("resnet81", CIFAR, 10)
    with pytest.raises(AtollError, match="Unknown model"):
        models.describe("zzz")
    with pytest.raises(AtollError, match=r"Unknown option 'native82' of model 'cnn1'. Did you mean 'native28'"):
        models.build("cnn1", MNIST, 10, native82=True)
    with pytest.raises(AtollError, match=r"'cnn1' takes images .* shape \(30,\).* bilstm, linear, lm, mlp, mlp_a, "):
        models.build("cnn1", (30,), 10)
    with pytest.raises(AtollError, match="'bilstm' takes texts"):
        models.build("bilstm", CIFAR, 10)
    with pytest.raises(AtollError, match="at least 1"):
        models.build("mlp", (4,), 0)
    with pytest.raises(AtollError, match=r"Linear has no linear layer called 'head'. Adapt it with split"):
        models.feature_dim(nn.Linear(2, 2))


# The image rule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "least", "most", "shape_after"),
    [
        ((1, 28, 28), 32, 32, (1, 32, 32)),
        ((1, 8, 8), 28, 28, (1, 28, 28)),
        ((3, 64, 64), 28, 28, (3, 28, 28)),
        ((3, 20, 40), 32, 32, (3, 32, 32)),
        ((3, 40, 300), 32, 32, (3, 32, 32)),
        ((3, 20, 40), 16, None, (3, 20, 40)),
        ((3, 5, 40), 16, None, (3, 16, 40)),
        ((1, 8, 8), 16, None, (1, 16, 16)),
    ],
)
def test_fit_image_output_has_the_declared_shape(shape, least, most, shape_after):
    fit = models.FitImage(shape, least, most)
    assert fit.shape == shape_after
    assert fit(torch.randn(2, *shape)).shape == (2, *shape_after)


def test_fit_image_pads_enlarges_and_averages():
    """1 2 / 3 4 to 5 pixels: every pixel twice, then one row and one column of zeros, right and below."""
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    rows = [[1.0, 1, 2, 2, 0], [1, 1, 2, 2, 0], [3, 3, 4, 4, 0], [3, 3, 4, 4, 0], [0, 0, 0, 0, 0]]
    assert torch.equal(models.FitImage((1, 2, 2), 5, 5)(x), torch.tensor([[rows]]))
    assert models.FitImage((1, 2, 2), 1, 1)(x).item() == 2.5
    padded = models.FitImage((1, 28, 28), 32, 32)(torch.ones(1, 1, 28, 28))
    assert padded.sum() == 28 * 28
    assert padded[0, 0, 2:30, 2:30].min() == 1


def test_fit_image_is_the_identity_for_fitting_sizes():
    x = torch.randn(1, *CIFAR)
    assert models.FitImage(CIFAR, 32, 32)(x) is x
    assert models.FitImage(CIFAR, 16)(x) is x


# Parts of the larger networks ----------------------------------------------------------------------------------------


def test_shuffle_interleaves_channels_of_groups():
    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert shuffle(x, 3).flatten().tolist() == [0, 2, 4, 1, 3, 5]


def test_shuffle_unit_leaves_half_of_the_channels_alone():
    x = torch.randn(2, 8, 4, 4)
    out = UnitV2(8, 8, 1, nn.BatchNorm2d)(x)
    assert torch.equal(out[:, 0::2], x[:, :4])


def test_residual_blocks_add_their_input():
    x = torch.randn(2, 8, 4, 4)
    block = basic(8, 8, 1, nn.BatchNorm2d, False)
    torch.testing.assert_close(block(x), (block.path(x) + x).relu())
    same, wider = paper_block(8, 8, 6, 1, nn.BatchNorm2d), paper_block(8, 12, 6, 1, nn.BatchNorm2d)
    torch.testing.assert_close(same(x), same.path(x) + x)
    torch.testing.assert_close(wider(x), wider.path(x))


def test_dropout_is_an_ordinary_layer_that_can_be_replaced():
    drops = [key for key, layer in models.build("feddw_mnist", MNIST, 10).named_modules() if type(layer) is nn.Dropout]
    assert drops == ["body.drop2"]
    drops = [key for key, layer in models.build("bilstm", (9,), 2).named_modules() if type(layer) is nn.Dropout]
    assert drops == ["body.drop1", "body.drop2"]


# The proxy -----------------------------------------------------------------------------------------------------------


def test_proxy_has_the_expected_size_shape_and_work():
    """CIFAR 8*28 + 3*73 = 443, MNIST 8*10 + 1*73 = 153; 32*32*(27*8 + 72*3) = 442,368 MACs."""
    cifar = models.proxy(CIFAR)
    assert (size(cifar), size(models.proxy(MNIST))) == (443, 153)
    assert macs(cifar, CIFAR) == 442_368
    assert size(models.proxy(CIFAR, filters=(4, 6), kernel=5)) == 4 * 76 + 6 * 101 + 3 * 151
    out = cifar(torch.randn(2, *CIFAR))
    assert out.shape == (2, *CIFAR)
    assert out.min() >= 0
    assert models.proxy(CIFAR, activation="tanh", final_relu=False)(torch.randn(8, *CIFAR)).min() < 0


def test_proxy_can_be_the_identity():
    """Both convolutions copy channel i by a 1 in the middle; ReLU leaves images >= 0 as they are."""
    net = models.proxy(CIFAR)
    for layer in (net.conv1, net.conv2):
        nn.init.zeros_(layer.bias)
        nn.init.dirac_(layer.weight)
    x = torch.rand(2, *CIFAR)
    assert torch.equal(net(x), x)


def test_proxy_near_the_identity_returns_nearly_its_input():
    x = torch.randn(8, *CIFAR)

    with torch.no_grad():
        near, usual = (models.proxy(CIFAR, final_relu=False, near_identity=start)(x) for start in (True, False))

    assert float((near - x).abs().mean()) < 0.05 < float((usual - x).abs().mean())


@pytest.mark.parametrize(
    "options", [{}, {"final_relu": False, "filters": (4,)}, {"final_relu": False, "activation": "elu"}]
)
def test_proxy_near_the_identity_refuses_forms_that_cannot_be_it(options):
    with pytest.raises(AtollError, match="at least 6 filters"):
        models.proxy(CIFAR, near_identity=True, **options)


def test_proxy_refuses_wrong_arguments():
    with pytest.raises(AtollError, match=r"kernel 4 turns \(3, 32, 32\) into \(3, 34, 34\).*odd kernel"):
        models.proxy(CIFAR, kernel=4)
    with pytest.raises(AtollError, match=r"Unknown activation 'rleu'. Did you mean 'relu'"):
        models.proxy(CIFAR, activation="rleu")
    with pytest.raises(AtollError, match="needs images"):
        models.proxy((30,))


# Adapters ------------------------------------------------------------------------------------------------------------


def test_adapters_give_a_common_width():
    x = torch.randn(2, *DIGITS)
    linear = models.build("mlp", DIGITS, 3, width=500)
    assert linear(x).shape == (2, 3)
    assert size(linear) == count("mlp", DIGITS, 3) + 500 * 65 + 3 * 500 - 3 * 64
    pool = models.build("mlp", DIGITS, 3, width=16, adapter="pool")
    assert size(pool.body) == 64 * 65
    means = pool.body.extractor(x).reshape(2, 16, 4).mean(2)
    torch.testing.assert_close(pool.body(x), means)
    assert size(models.build("cnn5", MNIST, 10, width=500)) == 669_258
    with pytest.raises(AtollError, match="Unknown adapter"):
        models.build("mlp", DIGITS, 3, width=16, adapter="square")


class Own(nn.Module):
    """A user's module; ``end`` is what happens after its last layer."""

    def __init__(self, end: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 4))
        self.end = end or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.classifier(self.conv(x).flatten(1)))
        return out


def test_split_shares_the_users_parameters_and_leaves_the_module_alone():
    own, x = Own().eval(), torch.randn(3, *DIGITS)
    before = own(x)
    net = models.split(own, head="classifier.3", sample=x)
    assert models.feature_dim(net) == 6
    assert net.body(x).shape == (3, 6)
    assert torch.equal(net(x), before)
    assert torch.equal(own(x), before)
    assert net.head.weight is own.classifier[3].weight
    assert net.body.conv.weight is own.conv.weight
    names = [key for key, _ in net.named_parameters()]
    assert names == [
        f"body.{key}" for key in ("conv.weight", "conv.bias", "classifier.1.weight", "classifier.1.bias")
    ] + [
        "head.weight",
        "head.bias",
    ]


def test_split_restores_training_modes():
    own = Own().train()
    own.conv.eval()
    net = models.split(own, head="classifier.3", sample=torch.randn(3, *DIGITS))
    assert (own.training, own.conv.training, own.classifier[0].training, net.training) == (True, False, True, True)


def test_split_with_another_number_of_classes_makes_a_new_head():
    own = Own()
    net = models.split(own, head="classifier.3", num_classes=9)
    assert net(torch.randn(2, *DIGITS)).shape == (2, 9)
    assert own.classifier[3].out_features == 4
    assert models.split(own, head="classifier.3", num_classes=4).head is own.classifier[3]


def test_split_refuses_layers_that_cannot_be_the_head():
    x = torch.randn(2, *DIGITS)
    with pytest.raises(AtollError, match=r"Own has no layer 'fc'.*: classifier.1, classifier.3\."):
        models.split(Own(), head="fc")
    with pytest.raises(AtollError, match=r"'conv' of Own is a Conv2d, not an nn.Linear.*classifier.3"):
        models.split(Own(), head="conv")
    with pytest.raises(AtollError, match=r"has no layer 'fc'. End it with an nn.Linear"):
        models.split(nn.Sequential(nn.ReLU()), head="fc")
    with pytest.raises(AtollError, match=r"Own changes the output of layer 'classifier.3'"):
        models.split(Own(nn.Softmax(1)), head="classifier.3", sample=x)
    chain = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Unflatten(1, (2, 3)))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Unflatten(1, (8, 8)))
    with pytest.raises(AtollError, match=r"'1' is not the last of Sequential: without it the module fails"):
        models.split(chain, head="1", sample=x)
    with pytest.raises(AtollError, match=r"'1' is not the last of Sequential.* \[2, 8, 8\], not \[batch, 64\]"):
        models.split(plain, head="1", sample=x)


# Text ----------------------------------------------------------------------------------------------------------------


def test_bilstm_averages_over_all_steps_or_over_words_only():
    tokens = torch.tensor([[5, 9, 2, 0, 0], [7, 7, 7, 7, 7], [0, 0, 0, 0, 0]])
    body = models.build("bilstm", (5,), 2, vocabulary=20).eval().body
    steps = body.fc1(body.lstm(body.embedding(tokens))[0]).relu()
    torch.testing.assert_close(body(tokens), body.fc2(steps.mean(1)))
    body.masked_mean = True
    words = torch.stack([steps[0, :3].mean(0), steps[1].mean(0), torch.zeros(128)])
    torch.testing.assert_close(body(tokens), body.fc2(words))


def test_bilstm_is_a_pure_function_of_its_parameters():
    net = models.build("bilstm", (6,), 2, vocabulary=20, hidden=8, masked_mean=True)
    params = {key: (2 * value).detach().requires_grad_() for key, value in net.named_parameters()}
    tokens = torch.randint(1, 20, (3, 6))
    out = functional_call(net.eval(), params, (tokens,))
    assert out.shape == (3, 2)
    assert not torch.allclose(out, net(tokens))
    assert all(g is not None for g in torch.autograd.grad(out.sum(), list(params.values()), allow_unused=True))


# Many at once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("cnn1", DIGITS, {}),
        ("cnn5", (1, 40, 30), {"width": 20, "adapter": "pool"}),
        ("mlp", DIGITS, {"width": 20}),
        ("small_cnn", MNIST, {}),
        ("feddw_fmnist", MNIST, {"track_running_stats": False}),
        ("feddw_shufflenet", DIGITS, {"track_running_stats": False}),
    ],
)
def test_vmap_over_stacked_parameters_equals_a_loop(name, shape, options):
    nets = [models.build(name, shape, 4, **options).double() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x, y = torch.randn(3, 5, *shape).double(), torch.randint(4, (3, 5))

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(nets[0], (p, b), (x,)), y)

    together = vmap(grad(loss))(params, buffers, x, y)
    for i, net in enumerate(nets):
        alone = torch.autograd.grad(nn.functional.cross_entropy(net(x[i]), y[i]), list(net.parameters()))
        for key, expected in zip(params, alone, strict=True):
            torch.testing.assert_close(together[key][i], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["small_cnn", "shufflenetv2"])
def test_memory_format_changes_no_result(name):
    net = models.build(name, CIFAR, 4).eval()
    x = torch.randn(2, *CIFAR)
    expected = net(x)
    fast = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(fast, expected, rtol=1e-4, atol=1e-5)
