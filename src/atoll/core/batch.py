"""Define a mini-batch, and the result of a forward pass over it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from .payloads import Params
from .prng import Key


class Batch(NamedTuple):
    """A mini-batch. ``Model.step`` writes the new running statistics to ``stats`` for the training loop."""

    x: Tensor
    y: Tensor
    w: Tensor  # 1 for a real row, 0 for padding
    k: Key  # key for dropout
    stats: Params
    extra: Mapping[str, Any] = {}  # further inputs of a method's own loss
    full: bool = False  # True if all rows are known to be real


class Step(NamedTuple):
    """The result of a forward pass in training mode, shared by all terms of an objective."""

    params: Params
    batch: Batch
    features: Tensor
    logits: Tensor
