"""What every architecture is made of, and the list they enter themselves into."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from ..data.dataset import Kind

Shape = tuple[int, ...]  # of one row: (channels, H, W), (columns,) or (length,)
Body = tuple[nn.Module, int]  # x -> features [B, d], and d
Maker = Callable[..., Body]  # (shape, **options)
Norm = Callable[[int], nn.Module]


class Net(nn.Module):
    """A body (x to features) and a head (features to logits); everything in the package rests on these two names."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


@dataclass(frozen=True)
class Entry:
    about: str  # one line
    kinds: tuple[Kind, ...]  # the data it takes
    make: Maker


ENTRIES: dict[str, Entry] = {}


def model(name: str, about: str, *kinds: Kind) -> Callable[[Maker], Maker]:
    """Registers the function that makes the body of an architecture; its keyword arguments are the model's options."""

    def register(make: Maker) -> Maker:
        ENTRIES[name] = Entry(about, kinds, make)
        return make

    return register


def named(**layers: nn.Module) -> nn.Sequential:
    """A chain whose parameters are called after the layers, such as ``conv1.weight``."""
    return nn.Sequential(OrderedDict(layers))


def batch_norm(track_running_stats: bool) -> Norm:
    """BatchNorm; without running statistics it has no buffers and uses the batch's own statistics in evaluation too."""
    return lambda width: nn.BatchNorm2d(width, track_running_stats=track_running_stats)


class GlobalMean(nn.Module):
    """``[B, d, H, W]`` to ``[B, d]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))
