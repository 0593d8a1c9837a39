"""Build MobileNetV2 for small images. Sandler et al., CVPR 2018. https://arxiv.org/abs/1801.04381

Three of the paper's five strides of 2 remain (before the 32-, 64- and 160-wide stages), so 32 pixels end as 4.
"""

from collections.abc import Callable

from torch import Tensor, nn

from .cnn import append_mapping
from .registry import Body, GlobalMean, Norm, Shape, batch_norm, model, named
from .resize import FitImage

_STAGES = (  # expansion, width, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
Activation = Callable[[], nn.Module]
Block = Callable[[int, int, int, int, Norm], nn.Module]


class Inverted(nn.Module):
    """Compute ``path(x)``, plus ``shortcut(x)`` if there is one, without activation after the sum."""

    def __init__(self, path: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.path = path
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return y if self.shortcut is None else y + self.shortcut(x)


def expansion_path(
    inside: int, outside: int, expansion: int, stride: int, norm: Norm, activation: Activation
) -> dict[str, nn.Module]:
    """Return the layers of a path: 1x1 to ``expansion`` times the width, depthwise 3x3, 1x1 back."""
    hidden = expansion * inside
    return {
        "expand": nn.Conv2d(inside, hidden, 1, bias=False),
        "bn1": norm(hidden),
        "act1": activation(),
        "depthwise": nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
        "bn2": norm(hidden),
        "act2": activation(),
        "project": nn.Conv2d(hidden, outside, 1, bias=False),
        "bn3": norm(outside),
    }


def paper_block(inside: int, outside: int, expansion: int, stride: int, norm: Norm) -> nn.Module:
    """Build the paper's block: ReLU6, no layer for an expansion of 1, and a shortcut only where shapes are equal."""
    path = expansion_path(inside, outside, expansion, stride, norm, nn.ReLU6)
    if expansion == 1:
        for layer in ("expand", "bn1", "act1"):
            del path[layer]
    return Inverted(named(**path), nn.Identity() if stride == 1 and inside == outside else None)


def feddw_block(inside: int, outside: int, expansion: int, stride: int, norm: Norm) -> nn.Module:
    """Build FedDW's block: ReLU, always a 1x1 expansion, and a projecting shortcut wherever the stride is 1."""
    shortcut: nn.Module | None = nn.Identity()
    if stride != 1:
        shortcut = None
    elif inside != outside:
        shortcut = named(conv=nn.Conv2d(inside, outside, 1, bias=False), bn=norm(outside))
    return Inverted(named(**expansion_path(inside, outside, expansion, stride, norm, nn.ReLU)), shortcut)


def mobile(shape: Shape, shrink: int, block: Block, activation: Activation, norm: Norm) -> Body:
    """Build the body: stem of 32, stages and last 1x1 convolution (widths divided by ``shrink``), and the mean."""
    fit = FitImage(shape, 16)
    blocks, inside = nn.Sequential(), 32
    for expansion, width, count, stride in _STAGES:
        for i in range(count):
            blocks.append(block(inside, width // shrink, expansion, 1 if i else stride, norm))
            inside = width // shrink
    last = 1280 // shrink
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 32, 3, 1, 1, bias=False),
        bn1=norm(32),
        act1=activation(),
        blocks=blocks,
        conv2=nn.Conv2d(inside, last, 1, bias=False),
        bn2=norm(last),
        act2=activation(),
        mean=GlobalMean(),
    )
    return body, last


@model("mobilenetv2", "MobileNetV2 for small images", "image")
def mobilenetv2(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return mobile(shape, 1, paper_block, nn.ReLU6, batch_norm(track_running_stats))


@model("feddw_mobilenetv2", "FedDW's MobileNetV2: all widths but the stem's halved; mapping layer 256, 128", "image")
def feddw_mobilenetv2(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return append_mapping(*mobile(shape, 2, feddw_block, nn.ReLU, batch_norm(track_running_stats)))
