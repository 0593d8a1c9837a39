"""Losses and objectives."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..errors import AtollError
from . import vmap
from .batch import Batch, Step
from .model import Model
from .payloads import Params
from .vmap import is_batched
from .vmap.linear_chain import ChainLayer

Loss = Callable[[Params, Batch], Tensor]
Term = Callable[[Step], Tensor]
DataLoss = Callable[[Tensor, Batch], Tensor]  # of outputs and batch


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of the data and further terms, as a function of params and a batch.

    Args:
        model: the model that is trained.
        terms: functions of the forward pass, such as regularisers.
        data_loss: function of outputs and batch.
    """

    model: Model
    terms: tuple[Term, ...]
    data_loss: DataLoss

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        step = self.model.step(params, batch)
        value = self.data_loss(step.logits, batch)
        for term in self.terms:
            value = value + term(step)
        return value

    @property
    def linear_chain(self) -> tuple[ChainLayer, ...] | None:
        """The layers of the model if it is a chain of linear layers and cross-entropy is the whole loss, else None."""
        return self.model.linear_chain if not self.terms and self.data_loss is cross_entropy else None


def objective(model: Model, *terms: Term, data_loss: DataLoss | None = None) -> Loss:
    """Return the loss L(w; B) = the loss of the data + the sum of the terms.

    Args:
        model: the model that is trained.
        terms: functions of the forward pass, such as regularisers.
        data_loss: function of outputs and batch, such as ``client.problem.loss``; cross-entropy by default.
    """
    return Objective(model, terms, data_loss or cross_entropy)


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the real rows of a batch.

    Raises:
        AtollError: labels are no classes. Methods that call this function declare ``Need.CLASSES``.
    """
    if batch.y.ndim != 1 or batch.y.is_floating_point():
        raise AtollError(
            f"cross_entropy needs one class for each sample, but labels are {batch.y.dtype} of shape "
            f"{list(batch.y.shape)}. Use client.problem.loss, or declare Need.CLASSES."
        )
    if batch.full:
        return F.cross_entropy(outputs, batch.y)
    if is_batched():
        return vmap.on_stacked(_weighted_cross_entropy, outputs, batch.y, batch.w)
    return _weighted_cross_entropy(outputs, batch.y, batch.w)


def mean_over_rows(each: Tensor, b: Batch) -> Tensor:
    """Return the mean of a loss of each row over the real rows of a batch."""
    return each.mean() if b.full else wmean(each, b.w)


def _weighted_cross_entropy(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Average with weights, with classes first meanwhile: for few classes, torch is faster across rows."""
    each = F.cross_entropy(logits.flatten(0, -2).T[None], y.flatten()[None], reduction="none").view(y.shape)
    return (each * w).sum(-1) / w.sum(-1).clamp(min=1)


def wmean(v: Tensor, w: Tensor) -> Tensor:
    """Return the mean of ``v`` over the rows whose weight in ``w`` is 1; 0 if there are none."""
    return (v * w).sum() / w.sum().clamp(min=1)
