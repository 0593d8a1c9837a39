"""Build small convolutional networks: the CNNs of FedGH, DC-PFL and pFedES, of FedDW and of FedPD.

Most share two stages: 5x5 convolution without padding, ReLU, 2x2 max-pool.
"""

from torch import nn

from .registry import Body, Maker, Shape, batch_norm, model, named
from .resize import FitImage


def two_stages(fit: FitImage, first: int, second: int, dropout: float = 0.0) -> tuple[dict[str, nn.Module], int]:
    """Return the layers of both 5x5 stages, and the number of values that leave them.

    Args:
        fit: brings images to the size of the network.
        first: channels of the first convolution.
        second: channels of the second convolution.
        dropout: rate of dropout after the second convolution; 0 for none.
    """
    channels, height, width = fit.shape
    drop: dict[str, nn.Module] = {"drop2": nn.Dropout(dropout)} if dropout else {}
    layers: dict[str, nn.Module] = {
        "fit": fit,
        "conv1": nn.Conv2d(channels, first, 5),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(first, second, 5),
        **drop,
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flat": nn.Flatten(),
    }
    return layers, second * _side_after_stages(height) * _side_after_stages(width)


def _side_after_stages(side: int) -> int:
    """Return the side of an image after two stages: 32 -> 28 -> 14 -> 10 -> 5."""
    return ((side - 4) // 2 - 4) // 2


def mapping_layers(width: int) -> dict[str, nn.Module]:
    """Return FedDW's mapping layer: 256 with ReLU, then 128 features without activation."""
    return {"fc1": nn.Linear(width, 256), "relu_fc1": nn.ReLU(), "fc2": nn.Linear(256, 128)}


def append_mapping(body: nn.Module, width: int) -> Body:
    """Append FedDW's mapping layer to a body that returns ``width`` features."""
    return named(**dict(body.named_children()), **mapping_layers(width)), 128


def _numbered_cnn(second: int, hidden: int) -> Maker:
    def make(shape: Shape, *, native28: bool = False) -> Body:
        """Build the body. ``native28`` uses 28x28 images directly instead of padding them to 32x32."""
        size = 28 if native28 else 32
        stages, width = two_stages(FitImage(shape, size, size), 16, second)
        fc1, fc2 = nn.Linear(width, hidden), nn.Linear(hidden, 500)
        return named(**stages, fc1=fc1, relu3=nn.ReLU(), fc2=fc2, relu4=nn.ReLU()), 500

    return make


_SECOND_AND_HIDDEN = ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500))
for _number, (_second, _hidden) in enumerate(_SECOND_AND_HIDDEN, 1):
    _about = f"CNN-{_number} of FedGH, DC-PFL and pFedES: convolutions 16, {_second}; layers {_hidden}, 500"
    model(f"cnn{_number}", _about, "image")(_numbered_cnn(_second, _hidden))


@model("lenet", "LeNet-5 with ReLU and max-pool: convolutions 6, 16; layers 120, 84", "image")
def lenet(shape: Shape) -> Body:
    stages, width = two_stages(FitImage(shape, 32, 32), 6, 16)
    fc1, fc2 = nn.Linear(width, 120), nn.Linear(120, 84)
    return named(**stages, fc1=fc1, relu3=nn.ReLU(), fc2=fc2, relu4=nn.ReLU()), 84


@model("feddw_mnist", "FedDW's network for MNIST: convolutions 10, 20 with dropout; mapping layer 256, 128", "image")
def feddw_mnist(shape: Shape, *, dropout: float = 0.5) -> Body:
    stages, width = two_stages(FitImage(shape, 28, 28), 10, 20, dropout)
    return named(**stages, **mapping_layers(width)), 128


@model("feddw_cifar", "FedDW's network for CIFAR-10: convolutions 6, 16; mapping layer 256, 128", "image")
def feddw_cifar(shape: Shape) -> Body:
    stages, width = two_stages(FitImage(shape, 32, 32), 6, 16)
    return named(**stages, **mapping_layers(width)), 128


@model(
    "feddw_fmnist",
    "FedDW's network for Fashion-MNIST and EMNIST: convolutions 16, 32 with BatchNorm; mapping layer 256, 128",
    "image",
)
def feddw_fmnist(shape: Shape, *, track_running_stats: bool = True) -> Body:
    norm = batch_norm(track_running_stats)
    fit = FitImage(shape, 28, 28)
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 16, 5, padding=2),
        bn1=norm(16),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 5, padding=2),
        bn2=norm(32),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flat=nn.Flatten(),
        **mapping_layers(32 * 7 * 7),
    )
    return body, 128


@model("cnn_a", "CNN-A for FedPD's EMNIST and Fashion-MNIST clients: convolutions 16, 32; layer 128", "image")
def cnn_a(shape: Shape) -> Body:
    return _with_128(FitImage(shape, 28, 28))


@model("small_cnn", "CNN-A without a fixed image size (16 pixels and more), for quick studies", "image")
def small_cnn(shape: Shape) -> Body:
    return _with_128(FitImage(shape, 16))


def _with_128(fit: FitImage) -> Body:
    stages, width = two_stages(fit, 16, 32)
    return named(**stages, fc1=nn.Linear(width, 128), relu3=nn.ReLU()), 128


@model("cnn_b", "CNN-B for FedPD's EMNIST and Fashion-MNIST clients: 3x3 convolutions 32, 32, 64; layer 128", "image")
def cnn_b(shape: Shape) -> Body:
    fit = FitImage(shape, 28, 28)
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 32, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(32, 64, 3, padding=1),
        relu3=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        flat=nn.Flatten(),
        fc1=nn.Linear(64 * 7 * 7, 128),
        relu4=nn.ReLU(),
    )
    return body, 128


@model(
    "server_cnn",
    "A larger CNN for FedPD's server on EMNIST and Fashion-MNIST: 3x3 convolutions 32, 64, 128, 128; layer 256",
    "image",
)
def server_cnn(shape: Shape) -> Body:
    fit = FitImage(shape, 28, 28)
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 32, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(64, 128, 3, padding=1),
        relu3=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        conv4=nn.Conv2d(128, 128, 3, padding=1),
        relu4=nn.ReLU(),
        flat=nn.Flatten(),
        fc1=nn.Linear(128 * 3 * 3, 256),
        relu5=nn.ReLU(),
    )
    return body, 256
