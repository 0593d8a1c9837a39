"""pFedES: both phases by hand, and that each moves only what it should."""

from dataclasses import replace

import pytest
import torch
from support import toy_models
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.client import Client
from atoll.core.losses import cross_entropy
from atoll.core.model import Model
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key, normal
from atoll.errors import AtollError
from atoll.methods.local import Local, State
from atoll.methods.pfedes import PFedES, Proxy, Update
from atoll.models import proxy as build_proxy

STILL = replace(toy_models.PLAIN, epochs=0)
ONCE = PFedES(toy_models.PLAIN, toy_models.PLAIN, mu=0.3)


class Scalar(nn.Module):
    """x -> (w x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.w * x, torch.zeros_like(x)], 1)


class Scale(nn.Module):
    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([theta]))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta * x


def scalar_client() -> Client:
    model = Model(toy_models.Net(nn.Identity(), Scalar()))
    return toy_models.client([[1.0]], [0], model, classes=2, proxy=Model(Scale(2.0)))


def images(seed: int = 1, proxy: Model | None = None) -> Client:
    """Nine images of 2 x 4 x 4 in three classes."""
    net = toy_models.Net(nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.ReLU()), nn.Linear(4, 3))
    small = proxy or Model(toy_models.filled(build_proxy((2, 4, 4)), 3))
    return toy_models.random_client(9, seed, Model(toy_models.filled(net)), shape=(2, 4, 4), proxy=small)


def copier() -> Model:
    """A proxy that gives back images without negative values: centre weights 1, one filter for each channel."""
    net = build_proxy((2, 4, 4), filters=(2,))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
            for channel in range(2):
                conv.weight[channel, channel, 1, 1] = 1.0
    return Model(net)


def test_both_phases_by_hand() -> None:
    """F(x) = (w x, 0), label 0, G(x) = theta x, x = 1, theta = 2, w = 0, mu = 0.3, rates 0.1.
    Phase 1: both passes have p = 1/2, so dw = 0.3 * -0.5 * 2 + 0.7 * -0.5 * 1 = -0.65 and w = 0.065.
    Phase 2: the logit is 0.13, 1 - p = 0.467546, dtheta = -0.467546 * 0.065 = -0.0303905 and theta = 2.0030390.
    In any other order phase 2 would see w = 0 and leave theta at 2.
    """
    c = scalar_client()
    up, state = toy_models.participate(ONCE, Proxy(c.proxy.init()), State(c.model.init()), c, key(0))  # type: ignore[union-attr]
    assert float(state.params["head.w"]) == pytest.approx(0.065, abs=1e-7)
    assert float(up.params["theta"]) == pytest.approx(2.0030390, abs=1e-6)


def test_aggregation() -> None:
    """n = (100, 300), theta = (2.0, 2.4): 0.25 * 2 + 0.75 * 2.4 = 2.3; over all 800 rows it would be 1.15."""
    ups = [
        Update(
            {"theta": torch.tensor([v])},
            torch.tensor(n),
        )
        for v, n in ((2.0, 100.0), (2.4, 300.0))
    ]
    out = toy_models.aggregate(PFedES(), Proxy({"theta": torch.zeros(1)}), ups, toy_models.task(toy_models.mlp()))
    assert float(out.params["theta"]) == pytest.approx(2.3)


def test_size_of_the_proxy() -> None:
    """3 -> 8 -> 3 with 3 x 3 kernels: 3 * 8 * 9 + 8 = 224 and 8 * 3 * 9 + 3 = 219, 443 in all; for one channel
    80 + 73 = 153. The image keeps its shape. The upload adds n_k.
    """
    for channels, size, weights in ((3, 32, 443), (1, 28, 153)):
        g = Model(build_proxy((channels, size, size)))
        x = torch.zeros(2, channels, size, size)
        assert g(g.init(), x).shape == x.shape
        assert nbytes(Proxy(g.init())) == 4 * weights
        assert nbytes(Update(g.init(), torch.tensor(1.0))) == 4 * (weights + 1)


def test_each_phase_moves_its_own_part() -> None:
    """The model after both phases is the one after phase 1; the proxy after phase 1 alone is the one received."""
    c = images()
    down, state = Proxy(c.proxy.init()), State(c.model.init())  # type: ignore[union-attr]
    both, after = toy_models.participate(PFedES(toy_models.RICH, toy_models.RICH), down, state, c, key(0))
    first, only = toy_models.participate(PFedES(toy_models.RICH, STILL), down, state, c, key(0))
    second, kept = toy_models.participate(PFedES(STILL, toy_models.RICH), down, state, c, key(0))
    toy_models.assert_same(after, only)
    toy_models.assert_same(Proxy(first.params), down)
    toy_models.assert_same(kept, state)
    assert not torch.equal(both.params["conv1.weight"], down.params["conv1.weight"])
    assert not torch.equal(both.params["conv1.weight"], second.params["conv1.weight"])  # phase 2 saw the trained model


def test_simultaneous_training_moves_model_and_proxy_in_every_step() -> None:
    """Two steps of rate 0.5 from w = 0 and theta = 2, with x = 1, mu = 0.3 and CE(z) = log(1 + exp(-z)).

    Step 1: dL/dw = -0.5 (0.3 * 2 + 0.7) = -0.65, so w = 0.325; dL/dtheta = -0.3 * 0.5 * 0 = 0.
    Step 2: s(-0.65) = 0.34299, s(-0.325) = 0.41946; dL/dw = -(0.3 * 0.34299 * 2 + 0.7 * 0.41946) = -0.49942,
    so w = 0.57471; dL/dtheta = -0.3 * 0.34299 * 0.325 = -0.033442, so theta = 2.016721.
    """
    c = scalar_client()
    method = PFedES(replace(toy_models.PLAIN, lr=0.5, epochs=2), STILL, mu=0.3, simultaneous=True)

    up, state = toy_models.participate(method, Proxy(c.proxy.init()), State(c.model.init()), c, key(0))  # type: ignore[union-attr]

    assert float(state.params["head.w"]) == pytest.approx(0.57471, abs=1e-5)
    assert float(up.params["theta"]) == pytest.approx(2.016721, abs=1e-5)


def test_mu_zero_is_local() -> None:
    c = images()
    state = State(c.model.init())
    _, own = toy_models.participate(
        PFedES(toy_models.RICH, toy_models.RICH, mu=0.0), Proxy(c.proxy.init()), state, c, key(0)
    )  # type: ignore[union-attr]
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), state, c, key(0))
    toy_models.assert_same(own, alone)
    assert PFedES(mu=0.0).reduces_to() is not None
    assert PFedES().reduces_to() is None


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
def test_a_proxy_that_copies_changes_nothing(mu: float) -> None:
    c = images(proxy=copier())
    c = replace(c, x=c.x.abs())
    g = c.proxy.init()  # type: ignore[union-attr]
    assert torch.equal(c.proxy(g, c.x), c.x)  # type: ignore[misc]
    b = toy_models.batch(c.x, c.y)
    loss = PFedES(mu=mu)._own_loss(g, c)(c.model.init(), b)
    torch.testing.assert_close(loss, cross_entropy(c.model(c.model.init(), c.x), b))
    _, own = toy_models.participate(PFedES(toy_models.RICH, STILL, mu=mu), Proxy(g), State(c.model.init()), c, key(0))
    _, alone = toy_models.participate(Local(toy_models.RICH), Nothing(), State(c.model.init()), c, key(0))
    toy_models.assert_near(own, alone)


def norm_client() -> Client:
    body = nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.BatchNorm1d(4))
    c = images()
    c = replace(c, x=c.x[:8], y=c.y[:8], n=c.n - 1)  # no batch of a single row, which has no variance
    return replace(c, model=Model(toy_models.filled(toy_models.Net(body, nn.Linear(4, 3)))))


def test_only_plain_images_move_the_running_statistics() -> None:
    """With a rate of 0 the statistics after phase 1 are those of plain training, whatever the proxy does."""
    c, idle = norm_client(), replace(toy_models.RICH, lr=0.0)
    state = State(c.model.init())
    _, own = toy_models.participate(PFedES(idle, STILL), Proxy(c.proxy.init()), state, c, key(0))  # type: ignore[union-attr]
    _, alone = toy_models.participate(Local(idle), Nothing(), state, c, key(0))
    toy_models.assert_same(own, alone)
    assert own.params["buffers.body.2.num_batches_tracked"] == 4


def test_the_fixed_model_keeps_its_statistics() -> None:
    c = norm_client()
    down, state = Proxy(c.proxy.init()), State(c.model.init())  # type: ignore[union-attr]
    up, after = toy_models.participate(PFedES(STILL, toy_models.RICH), down, state, c, key(0))
    toy_models.assert_same(after, state)
    assert not torch.equal(up.params["conv1.weight"], down.params["conv1.weight"])


def test_the_fixed_model_is_in_evaluation_mode() -> None:
    """A phase-2 step follows the gradient of CE through running statistics, not through those of the batch."""
    c = norm_client()
    g, f = c.proxy.init(), c.model.init()  # type: ignore[union-attr]
    f["buffers.body.2.running_mean"] = torch.full((4,), 5.0)
    up, _ = toy_models.participate(PFedES(STILL, toy_models.PLAIN), Proxy(g), State(f), c, key(0))
    leaves = {name: v.clone().requires_grad_() for name, v in g.items()}
    loss = cross_entropy(c.model(f, c.proxy(leaves, c.x)), toy_models.batch(c.x, c.y))  # type: ignore[misc]
    for (name, v), slope in zip(g.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True):
        torch.testing.assert_close(up.params[name], v - 0.1 * slope, rtol=1e-5, atol=1e-6)


def test_the_proxy_is_not_used_for_prediction() -> None:
    c = images()
    state = State({name: v + normal(key(4, name), *v.shape) for name, v in c.model.init().items()})
    assert torch.equal(
        method_calls.personal_predictor(PFedES(), Proxy({}), None, state, c)(c.x), c.model(state.params, c.x)
    )


def test_needs_a_proxy() -> None:
    with pytest.raises(AtollError, match="proxy"):
        PFedES().init_server(toy_models.task(toy_models.mlp()), key(0))


def test_senseless_mu_is_refused() -> None:
    with pytest.raises(AtollError, match=r"mu is 1\.5, but it must be from 0 to 1"):
        PFedES(mu=1.5)


def test_vmap_equals_loop() -> None:
    c = images()
    toy_models.check_vmap(PFedES(toy_models.RICH, toy_models.RICH), c.model, proxy=c.proxy, shape=(2, 4, 4))
