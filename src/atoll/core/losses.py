"""Losses and objectives."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from . import vmap
from .batch import Batch, Step
from .model import Model
from .payload import Params

Loss = Callable[[Params, Batch], Tensor]
Term = Callable[[Step], Tensor]


def objective(model: Model, *terms: Term) -> Loss:
    """L(w; B) = CE(w; B) + the sum of the terms."""

    def loss(params: Params, batch: Batch) -> Tensor:
        step = model.step(params, batch)
        value = cross_entropy(step.logits, batch)
        for term in terms:
            value = value + term(step)
        return value

    return loss


def cross_entropy(logits: Tensor, b: Batch) -> Tensor:
    """Its mean over the real rows of a batch."""
    return F.cross_entropy(logits, b.y) if b.full else vmap.on_stacked(_cross_entropy, logits, b.y, b.w)


def _cross_entropy(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Classes come first meanwhile: with few of them, torch is faster across rows than within each."""
    each = F.cross_entropy(logits.flatten(0, -2).T[None], y.flatten()[None], reduction="none").view(y.shape)
    return (each * w).sum(-1) / w.sum(-1).clamp(min=1)


def wmean(v: Tensor, w: Tensor) -> Tensor:
    """Mean of ``v`` over the real rows of a batch."""
    return (v * w).sum() / w.sum().clamp(min=1)
