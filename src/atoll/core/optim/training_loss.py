"""Measure the losses that a client minimises, without changing what the client computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch


@dataclass(frozen=True)
class TrainingLoss:
    """The losses of a client's training steps, added up over rows.

    Args:
        total: sum over steps of the mean loss of a step times its rows.
        rows: sum over steps of their rows; a row counts once in each epoch.
    """

    total: float = 0.0
    rows: float = 0.0

    def __add__(self, other: "TrainingLoss") -> "TrainingLoss":
        return TrainingLoss(self.total + other.total, self.rows + other.rows)

    @property
    def mean(self) -> float | None:
        """Return the mean loss of a row; None if the client trained on no row."""
        return self.total / self.rows if self.rows else None


class LossMeter:
    """Collects the losses of training steps. They are added up once at the end, which costs a step next to nothing."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor | int]] = []  # mean loss of each step, and its rows or their weights
        self._sums: list[Tensor] = []  # results of :meth:`sums` of whole trainings

    def add(self, loss: Tensor, batch: Batch) -> None:
        """Add the mean loss of a step over the real rows of its batch."""
        self._steps.append((loss.detach(), len(batch.w) if batch.full else batch.w))

    def add_sums(self, sums: Tensor) -> None:
        """Add the losses of a whole training: their sum over rows, and the number of rows, as :meth:`sums` does."""
        self._sums.append(sums)

    def sums(self) -> Tensor:
        """Return the sum of losses over rows, and the number of rows: float64 ``[2]``, of one client in a vmap."""
        parts = [*self._sums, *([self._sum_steps()] if self._steps else [])]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0] if parts else torch.zeros(2).double()

    def _sum_steps(self) -> Tensor:
        losses = torch.stack([loss for loss, _ in self._steps]).double()
        weights = [
            w.sum() if isinstance(w, Tensor) else torch.tensor(float(w)).to(losses.device) for _, w in self._steps
        ]
        rows = torch.stack(weights).double()
        # A batch of padding alone has no loss, whatever a method's own term makes of it.
        totals = torch.where(rows > 0, losses, 0.0) * rows
        return torch.stack([totals.sum(), rows.sum()]).cpu()

    def read(self) -> TrainingLoss:
        """Return the losses so far. Only outside of a vmap."""
        return TrainingLoss(*self.sums().tolist())


# A context variable and no argument: methods that users write lie between a client's work and its training loops.
_meter: ContextVar[LossMeter | None] = ContextVar("loss_meter", default=None)


@contextmanager
def measured_by(meter: LossMeter) -> Iterator[None]:
    """Let ``meter`` collect the losses of all training steps in this context."""
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)


def record_loss(loss: Tensor, batch: Batch) -> None:
    """Give the mean loss of a training step to the meter of this context, if there is one."""
    meter = _meter.get()
    if meter is not None:
        meter.add(loss, batch)


def record_sums(sums: Tensor) -> None:
    """Give the losses of a whole training to the meter of this context; see :meth:`LossMeter.add_sums`."""
    meter = _meter.get()
    if meter is not None:
        meter.add_sums(sums)
