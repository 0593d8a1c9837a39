"""Layers of a network as they are run: they compute what torch's own do, to the bit unless clients are batched."""

from functools import cached_property
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from . import clientwise
from .mapping import mapping_clients


class Linear(nn.Linear):
    """Has products of its own where clients are batched."""

    def forward(self, x: Tensor) -> Tensor:
        run = clientwise.linear if mapping_clients() else F.linear
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


def swift(net: nn.Module) -> nn.Module:
    """Let the layers of a network be run in these ways; only those that are torch's own, not what is built on them."""
    for module in net.modules():
        module.__class__ = _KINDS.get(type(module), type(module))
    return net
