"""Build residual networks for small images. He et al., CVPR 2016. https://arxiv.org/abs/1512.03385

The stem is one 3x3 convolution of stride 1 without max-pool; four stages of 64, 128, 256 and 512 follow.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import append_mapping
from .registry import Body, GlobalMean, Norm, Shape, batch_norm, model, named
from .resize import FitImage


class Residual(nn.Module):
    """Compute ``relu(path(x) + shortcut(x))``. The shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, path: nn.Module, inside: int, outside: int, stride: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.path = path
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = named(conv=nn.Conv2d(inside, outside, 1, stride, bias=bias), bn=norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def basic(inside: int, width: int, stride: int, norm: Norm, bias: bool) -> nn.Module:
    """Build a block of two 3x3 convolutions."""
    path = named(
        conv1=nn.Conv2d(inside, width, 3, stride, 1, bias=bias),
        bn1=norm(width),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, 1, 1, bias=bias),
        bn2=norm(width),
    )
    return Residual(path, inside, width, stride, norm, bias)


def bottleneck(inside: int, width: int, stride: int, norm: Norm, bias: bool) -> nn.Module:
    """Build a block of 1x1, 3x3 and 1x1 convolutions that returns ``4 * width`` channels."""
    path = named(
        conv1=nn.Conv2d(inside, width, 1, bias=bias),
        bn1=norm(width),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, stride, 1, bias=bias),
        bn2=norm(width),
        relu2=nn.ReLU(),
        conv3=nn.Conv2d(width, 4 * width, 1, bias=bias),
        bn3=norm(4 * width),
    )
    return Residual(path, inside, 4 * width, stride, norm, bias)


def residual(shape: Shape, depths: tuple[int, ...], wide: bool, track: bool, bias: bool = False) -> Body:
    """Build the body: stem, stages and the mean over positions.

    Args:
        shape: (channels, height, width) of images.
        depths: number of blocks in each stage.
        wide: use bottleneck blocks instead of basic ones.
        track: keep running statistics in BatchNorm.
        bias: give convolutions a bias.
    """
    block, expansion = (bottleneck, 4) if wide else (basic, 1)
    norm = batch_norm(track)
    fit = FitImage(shape, 16)
    layers: dict[str, nn.Module] = {
        "fit": fit,
        "conv1": nn.Conv2d(fit.shape[0], 64, 3, 1, 1, bias=bias),
        "bn1": norm(64),
        "relu1": nn.ReLU(),
    }
    inside = 64
    for stage, depth in enumerate(depths):
        width, blocks = 64 << stage, nn.Sequential()
        for i in range(depth):
            blocks.append(block(inside, width, 2 if stage and not i else 1, norm, bias))
            inside = expansion * width
        layers[f"stage{stage + 1}"] = blocks
    return named(**layers, mean=GlobalMean()), inside


@model("resnet18", "ResNet-18 for small images", "image")
def resnet18(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return residual(shape, (2, 2, 2, 2), False, track_running_stats)


@model("resnet34", "ResNet-34 for small images", "image")
def resnet34(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return residual(shape, (3, 4, 6, 3), False, track_running_stats)


@model("resnet50", "ResNet-50 for small images", "image")
def resnet50(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return residual(shape, (3, 4, 6, 3), True, track_running_stats)


@model("feddw_resnet18", "FedDW's ResNet-18: convolutions with bias; mapping layer 256, 128", "image")
def feddw_resnet18(shape: Shape, *, track_running_stats: bool = True) -> Body:
    return append_mapping(*residual(shape, (2, 2, 2, 2), False, track_running_stats, bias=True))
