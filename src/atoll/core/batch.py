"""A mini-batch and one forward pass over it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from .payloads import Params
from .prng import Key


class Batch(NamedTuple):
    """A mini-batch. A training-mode forward pass leaves the new running statistics in ``stats``."""

    x: Tensor
    y: Tensor
    w: Tensor  # 1 for a real example, 0 for padding
    k: Key  # for dropout
    stats: Params  # filled by Model.step, read by the training loop
    extra: Mapping[str, Any] = {}  # what else a method hands to its own loss
    full: bool = False  # whether it is known that all examples are real


class Step(NamedTuple):
    """One training-mode forward pass, shared by all terms of an objective."""

    params: Params
    batch: Batch
    features: Tensor
    logits: Tensor
