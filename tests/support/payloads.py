"""Payload classes of every kind of field, and examples of them."""

import torch
from torch import Tensor

from atoll.core.payloads import Params, about, payload
from atoll.core.prng import key, normal


@payload
class Table:
    n: Tensor = about("rows of each class [C]")
    mu: Tensor = about("means [C, d]", rows="n")
    sigma: Tensor | None = about("covariances [C, d, d]", rows="n", symmetric=True)


@payload
class Flagged:
    means: Tensor = about("means [C, d]", rows="held")
    held: Tensor = about("which classes [C]")


@payload
class Mixed:
    params: Params = about("weights")
    square: Tensor = about("a symmetric matrix", symmetric=True)
    maybe: Tensor | None = about("perhaps something")
    stage: str = about("a word")
    step: int = about("a number")
    rate: float = about("another")
    last: bool = about("a flag")


def table(n: Tensor, width: int, covariances: bool = True) -> Table:
    held = n > 0
    a = normal(key(1), len(n), width, width)
    sigma = (a + a.mT) * held[:, None, None] if covariances else None
    return Table(n, normal(key(2), len(n), width) * held[:, None], sigma)


def mixed(maybe: Tensor | None = None) -> Mixed:
    square = torch.tensor([[1.0, 2.0], [2.0, 3.0]])
    params = {"b.weight": torch.ones(2, 3), "a.bias": torch.zeros(4), "buffers.n": torch.tensor(3)}
    return Mixed(params, square, maybe, "warm", 3, 0.5, True)
