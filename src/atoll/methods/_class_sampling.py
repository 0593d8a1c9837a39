"""Draw rows evenly over classes."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.prng import Key, bits, fold, randint


def evenly(y: Tensor) -> Callable[[int, Key], Tensor]:
    """Return a function that draws ``size`` row numbers by a key, evenly over the classes in ``y`` [N].

    The numbers of rows of two classes differ by one at most; rows of one class are equally likely.
    """
    order, counts = y.argsort(stable=True), y.bincount()
    held, starts = counts.nonzero().flatten(), counts.cumsum(0) - counts

    def draw(size: int, k: Key) -> Tensor:
        labels = held[(torch.arange(size) + randint(fold(k, 0), len(held))) % len(held)]
        return order[starts[labels] + bits(fold(k, 1), size) % counts[labels]]

    return draw
