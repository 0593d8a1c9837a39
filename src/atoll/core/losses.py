"""Losses and objectives."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from . import vmap
from .batch import Batch, Step
from .model import Model
from .payloads import Params
from .vmap import is_batched

Loss = Callable[[Params, Batch], Tensor]
Term = Callable[[Step], Tensor]


def objective(model: Model, *terms: Term) -> Loss:
    """Return the loss L(w; B) = CE(w; B) + the sum of the terms.

    Args:
        model: the model that is trained.
        terms: functions of the forward pass, such as regularisers.
    """

    def loss(params: Params, batch: Batch) -> Tensor:
        step = model.step(params, batch)
        value = cross_entropy(step.logits, batch)
        for term in terms:
            value = value + term(step)
        return value

    return loss


def cross_entropy(logits: Tensor, b: Batch) -> Tensor:
    """Return the mean cross-entropy over the real rows of a batch."""
    if b.full:
        return F.cross_entropy(logits, b.y)
    if is_batched():
        return vmap.on_stacked(_weighted_cross_entropy, logits, b.y, b.w)
    return _weighted_cross_entropy(logits, b.y, b.w)


def _weighted_cross_entropy(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Average with weights, with classes first meanwhile: for few classes, torch is faster across rows."""
    each = F.cross_entropy(logits.flatten(0, -2).T[None], y.flatten()[None], reduction="none").view(y.shape)
    return (each * w).sum(-1) / w.sum(-1).clamp(min=1)


def wmean(v: Tensor, w: Tensor) -> Tensor:
    """Return the mean of ``v`` over the rows whose weight in ``w`` is 1; 0 if there are none."""
    return (v * w).sum() / w.sum().clamp(min=1)
