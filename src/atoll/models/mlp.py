"""Build networks without convolutions, for flattened images and for tables."""

import math
from collections.abc import Iterable, Sequence

from torch import nn

from ..errors import AtollError
from .registry import Body, Shape, model, named


def dense_layers(shape: Shape, hidden: Iterable[int], norm: bool = False) -> Body:
    """Build a body that flattens rows and has a layer with ReLU for each width in ``hidden``.

    With ``norm``, BatchNorm comes before each ReLU.
    """
    parts: dict[str, nn.Module] = {"flat": nn.Flatten()}
    width = math.prod(shape)
    for i, wide in enumerate(hidden, 1):
        parts |= {f"fc{i}": nn.Linear(width, wide)}
        parts |= {f"bn{i}": nn.BatchNorm1d(wide)} if norm else {}
        parts |= {f"relu{i}": nn.ReLU()}
        width = wide
    return named(**parts), width


@model("linear", "No body: the flattened input is the feature (logistic regression)", "image", "table")
def linear(shape: Shape) -> Body:
    return dense_layers(shape, ())


@model(
    "mlp",
    "Flatten and one layer of 64 with ReLU; other widths by the option hidden, BatchNorm by the option norm",
    "image",
    "table",
)
def mlp(shape: Shape, *, hidden: int | Sequence[int] = (64,), norm: bool = False) -> Body:
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if any(not isinstance(width, int) or width < 1 for width in widths):
        raise AtollError(f"Model 'mlp': hidden={hidden!r}. Give whole numbers above 0, such as hidden=[128, 64].")
    return dense_layers(shape, widths, norm)


@model("mlp_a", "MLP-A for FedPD's EMNIST and Fashion-MNIST clients: layers 256, 128", "image", "table")
def mlp_a(shape: Shape) -> Body:
    return dense_layers(shape, (256, 128))


@model("mlp_b", "MLP-B for FedPD's EMNIST and Fashion-MNIST clients: layers 512, 256, 128", "image", "table")
def mlp_b(shape: Shape) -> Body:
    return dense_layers(shape, (512, 256, 128))
