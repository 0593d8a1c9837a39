"""The training loop and the gradient it follows."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from .. import vmap
from ..batch import Batch
from ..client import Client
from ..hyperparams import setting, within
from ..losses import Loss
from ..memory_layout import to_layout
from ..params import BUFFERS
from ..payloads import Params
from ..prng import Key, fold, permutation
from ..torch_private import norm_of_each
from ..vmap import is_batched
from .schedules import CONSTANT, SCHEDULES, factor_at

Correct = Callable[[Params], Params]


def gradient(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
    """Return the gradient of a loss with respect to the weights, and the new running statistics.

    Args:
        loss: function of params and a batch.
        params: weights and buffers.
        batch: the rows of the step; its ``stats`` are left as they are.
    """
    if is_batched():
        return vmap.gradient(loss, params, batch)
    leaves = {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in params.items()}
    moving = {name: v for name, v in leaves.items() if v.requires_grad}
    stats: Params = {}
    with torch.enable_grad():
        value = loss(leaves, batch._replace(stats=stats))
    grads = torch.autograd.grad(value, tuple(moving.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(moving, grads, strict=True)), {name: v.detach() for name, v in stats.items()}


def _leaf(v: Tensor) -> Tensor:
    """Return a tensor that gradients are taken with respect to; one that is such already stays the same."""
    return v if v.requires_grad and v.is_leaf else v.detach().requires_grad_()


def clip_by_norm(grads: Params, most: float) -> Params:
    """Scale a gradient down to the norm ``most`` of all its tensors together, if it is longer."""
    if is_batched():
        return vmap.clip_by_norm(grads, most)
    norm = torch.linalg.vector_norm(torch.stack(norm_of_each(list(grads.values())))) + 1e-6
    if norm <= most:  # common, and spares a pass over memory
        return grads
    scale = (most / norm).clamp(max=1.0)
    return {name: g * scale for name, g in grads.items()}


# A context variable and no argument: methods also build optimisers inside ``local``, where no argument reaches them.
_idle: ContextVar[bool] = ContextVar("idle", default=False)


@contextmanager
def no_training() -> Iterator[None]:
    """Let optimisers return the params they are given, for dry runs that need the form of results, not their values."""
    token = _idle.set(True)
    try:
        yield
    finally:
        _idle.reset(token)


@dataclass(frozen=True)
class Optimiser:
    """Minimise a loss from given params over mini-batches."""

    lr: float = setting(0.01, "learning rate", "common to the DC-PFL and pFedES papers")
    epochs: int = setting(5, "passes over the data", "FedDW, FedPD and SCD; DC-PFL and pFedES search 1 to 100")
    batch_size: int = setting(32, "rows per step", "smallest of the DC-PFL grid")
    weight_decay: float = setting(1e-3, "L2 penalty added to the gradient", "public code of FedGH and pFedES")
    clip: float = setting(50.0, "largest norm of the whole gradient; 0 for none", "public code of FedGH and pFedES")
    schedule: str = setting(CONSTANT, f"learning rate by rounds: {', '.join(SCHEDULES)}", "chosen here")

    def __post_init__(self) -> None:
        within(self, 1, "batch_size")
        within(self, 0, "lr", "epochs", "weight_decay", "clip")
        factor_at(self.schedule, 0)  # refuses a text that is no schedule

    def at(self, t: int) -> Self:
        """Return the optimiser of round ``t``, counted from 0, whose learning rate follows from the schedule."""
        if self.schedule == CONSTANT:
            return self
        return replace(self, lr=self.lr * factor_at(self.schedule, t), schedule=CONSTANT)

    def fit(
        self,
        loss: Loss,
        params: Params,
        client: Client,
        k: Key,
        correct: Correct | None = None,
        steps: int | None = None,
    ) -> Params:
        """Train on a client's data.

        Args:
            loss: function of params and a batch.
            params: weights and buffers to start from; left as they are.
            client: the client whose rows are trained on.
            k: key of the training: it decides the order of the rows, dropout and augmentation.
            correct: changes each gradient before it is used.
            steps: number of batches to train on, through as many epochs as that takes; None for whole ``epochs``.

        Returns:
            The trained params.
        """
        if steps is None:
            return self.run(loss, params, client.batches(k, self.epochs, self.batch_size), correct)
        return self.run(loss, params, islice(client.batches(k, None, self.batch_size), steps), correct)

    def run(self, loss: Loss, params: Params, batches: Iterable[Batch], correct: Correct | None = None) -> Params:
        """Train on given batches, one step for each; see :meth:`fit`."""
        if _idle.get():
            batches = ()
        if is_batched():
            return vmap.run(self, loss, params, batches, correct)
        params = _training_copy(params)
        memory: dict[str, Params] = {}
        for batch in batches:
            grads, stats = self._gradient(loss, params, batch)
            grads = correct(grads) if correct else grads
            with torch.no_grad():
                self._apply(params, self._clipped(grads), memory)
            params |= stats
        return {name: v.detach().contiguous() for name, v in params.items()}

    def _gradient(self, loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
        """Return the gradient of a step, and the new running statistics."""
        return gradient(loss, params, batch)

    def batches(self, x: Tensor, y: Tensor, k: Key) -> Iterator[Batch]:
        """Yield shuffled batches of data that is not a client's: public, or made by the server."""
        for epoch in range(self.epochs):
            own = fold(k, epoch)
            for i, rows in enumerate(permutation(fold(own, 0), len(x)).split(self.batch_size)):
                yield Batch(x[rows], y[rows], torch.ones(len(rows)), fold(fold(own, 1), i), {}, full=True)

    def _clipped(self, grads: Params) -> Params:
        return clip_by_norm(grads, self.clip) if self.clip > 0 else grads

    @abstractmethod
    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        """Move the weights in ``params`` and the slots in ``memory``, in place: both belong to this call alone."""


def _training_copy(params: Params) -> Params:
    """Return copies to write into, made once as each step would make them: leaves, in the layout of convolutions."""
    copies = {name: to_layout(v.detach().clone(), torch.channels_last) for name, v in params.items()}
    return {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in copies.items()}
