"""Draw rows so that every class is equally frequent."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.prng import Key, bits, fold, randint


def balanced_sampler(y: Tensor) -> Callable[[int, Key], Tensor]:
    """Return a function ``draw(size, key)`` that draws row indices evenly over the classes in ``y`` [N].

    The numbers of rows of two classes differ by one at most. Rows of one class are equally likely.
    """
    order, counts = y.argsort(stable=True), y.bincount()
    held, starts = counts.nonzero().flatten(), counts.cumsum(0) - counts

    def draw(size: int, k: Key) -> Tensor:
        labels = held[(torch.arange(size) + randint(fold(k, 0), len(held))) % len(held)]
        return order[starts[labels] + bits(fold(k, 1), size) % counts[labels]]

    return draw
