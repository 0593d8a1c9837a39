"""Layers of a network as they are run: dropout by key, faster equivalents of torch's own layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import vmap
from .prng import Key, fold, uniform
from .vmap import is_batched


def to_layout(v: Tensor, layout: torch.memory_format) -> Tensor:
    """An image or a kernel in a layout; other tensors have only one."""
    return v.to(memory_format=layout) if v.ndim == 4 else v


_current: ContextVar[Key | None] = ContextVar("noise", default=None)


@contextmanager
def noise(k: Key) -> Iterator[None]:
    """Dropout layers inside draw from ``k``."""
    token = _current.set(k)
    try:
        yield
    finally:
        _current.reset(token)


class KeyedDropout(nn.Module):
    """Zero each element (or each channel) with probability ``p``; the others grow to keep the mean."""

    def __init__(self, p: float, stream: int, channels: bool):
        super().__init__()
        self.p, self.stream, self.channels = p, stream, channels

    def forward(self, x: Tensor) -> Tensor:
        k = _current.get()
        if not self.training or k is None or self.p == 0:
            return x
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if self.channels else x.shape
        return x * (uniform(fold(k, self.stream), *shape) >= self.p) / (1 - self.p)


def key_dropout(net: nn.Module) -> nn.Module:
    """Replace every dropout layer of ``net`` by a keyed one, each with a stream of its own."""
    stream = 0
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, KeyedDropout(child.p, stream, channels=not isinstance(child, nn.Dropout)))
                stream += 1
    return net


class Linear(nn.Linear):
    """Has products of its own where clients are batched."""

    def forward(self, x: Tensor) -> Tensor:
        run = vmap.linear if is_batched() else F.linear
        return run(x, self.weight, self.bias)


class Sequence(nn.Sequential):
    """Takes the largest of each window before it cuts off what is negative.

    Both orders give the same numbers and the same gradients, and so there is a quarter as much to cut off, or less.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.order:
            x = layer(x)
        return x

    @cached_property
    def order(self) -> tuple[nn.Module, ...]:
        """Children stay in their own order, for who looks at them one by one."""
        return _pooled_first(list(self))


def _pooled_first(layers: list[nn.Module]) -> tuple[nn.Module, ...]:
    for at, (cut, pool) in enumerate(pairwise(tuple(layers))):
        if type(cut) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers[at : at + 2] = pool, cut
    return tuple(layers)


_KINDS = {nn.Linear: Linear, nn.Sequential: Sequence}


def optimise_layers(net: nn.Module) -> nn.Module:
    """Let the layers of a network be run in these ways; only those that are torch's own, not what is built on them."""
    for module in net.modules():
        module.__class__ = _KINDS.get(type(module), type(module))
    return net
