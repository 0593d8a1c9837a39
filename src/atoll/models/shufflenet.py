"""Build ShuffleNets for small images.

V2: Ma et al., ECCV 2018. https://arxiv.org/abs/1807.11164    V1: Zhang et al., CVPR 2018. https://arxiv.org/abs/1707.01083
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import mapping_layers
from .registry import Body, GlobalMean, Norm, Shape, batch_norm, model, named
from .resize import FitImage

_DEPTHS = (4, 8, 4)  # units of the three stages, in both versions


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of groups: with 2 groups, a b c d becomes a c b d."""
    interleaved: Tensor = x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return interleaved


class UnitV2(nn.Module):
    """A unit of V2: one half of the channels takes a path, the other stays. At stride 2 all channels take two paths."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        half = outside // 2
        self.split = stride == 1
        self.other: nn.Module = nn.Identity()
        if stride == 2:
            self.other = named(
                depthwise=nn.Conv2d(inside, inside, 3, 2, 1, groups=inside, bias=False),
                bn1=norm(inside),
                conv=nn.Conv2d(inside, half, 1, bias=False),
                bn2=norm(half),
                relu=nn.ReLU(),
            )
        self.path = named(
            conv1=nn.Conv2d(half if self.split else inside, half, 1, bias=False),
            bn1=norm(half),
            relu1=nn.ReLU(),
            depthwise=nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            bn2=norm(half),
            conv2=nn.Conv2d(half, half, 1, bias=False),
            bn3=norm(half),
            relu2=nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1) if self.split else (x, x)
        return shuffle(torch.cat((self.other(left), self.path(right)), 1), 2)


class UnitV1(nn.Module):
    """A unit of V1: grouped 1x1, shuffle, depthwise 3x3, grouped 1x1. The input is added (stride 2: concatenated)."""

    def __init__(self, inside: int, outside: int, stride: int, groups: tuple[int, int], norm: Norm) -> None:
        super().__init__()
        added = outside - inside if stride == 2 else outside
        hidden = added // 4
        self.first, last = groups
        self.side_by_side = stride == 2
        self.conv1 = nn.Conv2d(inside, hidden, 1, groups=self.first, bias=False)
        self.bn1 = norm(hidden)
        self.rest = named(
            depthwise=nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            bn2=norm(hidden),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(hidden, added, 1, groups=last, bias=False),
            bn3=norm(added),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.rest(shuffle(F.relu(self.bn1(self.conv1(x))), self.first))
        if self.side_by_side:
            return F.relu(torch.cat((y, F.avg_pool2d(x, 3, 2, 1)), 1))
        return F.relu(y + x)


@model("shufflenetv2", "ShuffleNetV2 (x1.0) for small images: the stem neither strides nor pools", "image")
def shufflenetv2(shape: Shape, *, track_running_stats: bool = True) -> Body:
    norm = batch_norm(track_running_stats)
    fit = FitImage(shape, 16)
    units, inside = nn.Sequential(), 24
    for width, depth in zip((116, 232, 464), _DEPTHS, strict=True):
        for i in range(depth):
            units.append(UnitV2(inside, width, 1 if i else 2, norm))
            inside = width
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 24, 3, 1, 1, bias=False),
        bn1=norm(24),
        relu1=nn.ReLU(),
        units=units,
        conv2=nn.Conv2d(inside, 1024, 1, bias=False),
        bn2=norm(1024),
        relu2=nn.ReLU(),
        mean=GlobalMean(),
    )
    return body, 1024


@model("feddw_shufflenet", "FedDW's ShuffleNet (V1, 2 groups): stages 200, 400, 800; mapping layer 256, 128", "image")
def feddw_shufflenet(shape: Shape, *, track_running_stats: bool = True) -> Body:
    norm = batch_norm(track_running_stats)
    fit = FitImage(shape, 16)
    units, inside = nn.Sequential(), 24
    for width, depth in zip((200, 400, 800), _DEPTHS, strict=True):
        for i in range(depth):
            groups = (1 if inside == 24 else 2, 2)  # The first unit has too few channels for groups.
            units.append(UnitV1(inside, width, 1 if i else 2, groups, norm))
            inside = width
    body = named(
        fit=fit,
        conv1=nn.Conv2d(fit.shape[0], 24, 1, bias=False),
        bn1=norm(24),
        relu1=nn.ReLU(),
        units=units,
        mean=GlobalMean(),
        **mapping_layers(inside),
    )
    return body, 128
