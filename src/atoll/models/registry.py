"""Register architectures, and define the parts that they share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Shape = tuple[int, ...]  # shape of one row: (channels, H, W), (columns,) or (length,)
Body = tuple[nn.Module, int]  # x -> features [B, d], and d
Maker = Callable[..., Body]  # (shape, **options)
Norm = Callable[[int], nn.Module]


class Net(nn.Module):
    """A network of a body (rows to features) and a head (features to logits)."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class TiedBody(nn.Module):
    """A body whose embedding is the weight of the head: one tensor, which both use.

    Args:
        width: number of features.
    """

    embedding: Tensor  # [outputs, width]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def make_net(self, outputs: int) -> Net:
        """Return the network of this body and a head without bias, with one tensor for embedding and head."""
        head = nn.Linear(self.width, outputs, bias=False)
        nn.init.normal_(head.weight, std=self.width**-0.5)
        self.embedding = head.weight
        return Net(self, head)


@dataclass(frozen=True)
class Entry:
    """A registered architecture."""

    about: str  # one line
    kinds: tuple[str, ...]  # kinds of data that the architecture takes, or "next-token"
    make: Maker


ENTRIES: dict[str, Entry] = {}


def model(name: str, about: str, *kinds: str) -> Callable[[Maker], Maker]:
    """Register a function that builds the body of an architecture.

    Keyword-only arguments of the function are the options of the architecture.

    Args:
        name: name of the architecture.
        about: one line of description.
        kinds: kinds of data that the architecture takes.
    """

    def register(make: Maker) -> Maker:
        ENTRIES[name] = Entry(about, kinds, make)
        return make

    return register


def named(**layers: nn.Module) -> nn.Sequential:
    """Chain layers so that parameters have the names of the layers, such as ``conv1.weight``."""
    return nn.Sequential(OrderedDict(layers))


def batch_norm(track_running_stats: bool) -> Norm:
    """Return a constructor of BatchNorm layers.

    Without running statistics, layers have no buffers and use the statistics of the batch in evaluation too.
    """
    return lambda width: nn.BatchNorm2d(width, track_running_stats=track_running_stats)


class GlobalMean(nn.Module):
    """Average over positions: ``[B, d, H, W]`` to ``[B, d]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))
