"""Layers of a network as they are run: dropout by key, faster equivalents of torch's own layers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from . import vmap
from .prng import Key, fold, uniform
from .vmap import is_batched

# A context variable and no argument: a dropout layer runs inside a network of the user's, whose ``forward`` takes
# nothing but the rows.
_current: ContextVar[Key | None] = ContextVar("noise", default=None)


@contextmanager
def noise(k: Key) -> Iterator[None]:
    """Let dropout layers draw from the key ``k`` while the context is open."""
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
    """Replace every dropout layer of ``net``, in place, by a keyed one with a stream of its own."""
    stream = 0
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, KeyedDropout(child.p, stream, channels=not isinstance(child, nn.Dropout)))
                stream += 1
    return net


class Linear(nn.Linear):
    """A linear layer that computes a product for each client where clients are batched."""

    def forward(self, x: Tensor) -> Tensor:
        run = vmap.linear if is_batched() else F.linear
        return run(x, self.weight, self.bias)


class Sequence(nn.Sequential):
    """Layers in a row, with max pooling before a ReLU that precedes it.

    Both orders give the same numbers and the same gradients, and the ReLU has a quarter of the work, or less.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.order:
            x = layer(x)
        return x

    @cached_property
    def order(self) -> tuple[nn.Module, ...]:
        """The layers as they run. Children keep their own order, for code that reads them one by one."""
        return _pooled_first(list(self))


def _pooled_first(layers: list[nn.Module]) -> tuple[nn.Module, ...]:
    for at, (cut, pool) in enumerate(pairwise(tuple(layers))):
        if type(cut) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers[at : at + 2] = pool, cut
    return tuple(layers)


_KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: Linear, nn.Sequential: Sequence}


def optimise_layers(net: nn.Module) -> nn.Module:
    """Return a copy of a network in which faster equivalents stand for torch's own layers.

    Layers of other classes stay as they are, also those built on torch's own.
    """
    net = copy.deepcopy(net)
    modules = dict(net.named_modules(remove_duplicate=False))  # a layer that is used twice has two names
    faster = {id(module): _equivalent(module) for module in modules.values()}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if name:
            setattr(modules[parent], child, faster[id(module)])
    return faster[id(net)]


def _equivalent(module: nn.Module) -> nn.Module:
    """Return a module with the state of ``module`` (tensors, children, hooks) that runs faster, if there is one."""
    kind = _KINDS.get(type(module))
    if kind is None:
        return module
    made = kind.__new__(kind)
    made.__dict__.update(module.__dict__)
    return made
