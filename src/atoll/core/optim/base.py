"""The training loop and the gradient it follows."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import vmap
from ..batch import Batch
from ..client import Client
from ..hyperparams import setting, within
from ..layers import to_layout
from ..losses import Loss
from ..params import BUFFERS, weights, zeros
from ..payload import Params
from ..prng import Key, fold, permutation
from ..vmap import is_batched

Correct = Callable[[Params], Params]


# ---------------------------------------------------------------------------------------------------------------------
# Gradients: plain autograd by default, torch.func where a backend maps over clients.


def gradient(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
    """The gradient with respect to the weights, and the new running statistics."""
    if is_batched():
        return _mapped_gradient(loss, params, batch)
    leaves = {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in params.items()}
    moving = {name: v for name, v in leaves.items() if v.requires_grad}
    stats: Params = {}
    with torch.enable_grad():
        value = loss(leaves, batch._replace(stats=stats))
    grads = torch.autograd.grad(value, tuple(moving.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(moving, grads, strict=True)), {name: v.detach() for name, v in stats.items()}


def _leaf(v: Tensor) -> Tensor:
    """What a gradient is taken with respect to; in a training loop it stays the same from step to step."""
    return v if v.requires_grad and v.is_leaf else v.detach().requires_grad_()


def _mapped_gradient(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
    moving = weights(params)
    fixed = {name: v for name, v in params.items() if name not in moving}

    def with_stats(w: Params) -> tuple[Tensor, Params]:
        b = batch._replace(stats={})
        return loss(w | fixed, b), b.stats

    grads, stats = vmap.gradient(with_stats, moving)
    return grads, {name: v.detach() for name, v in stats.items()}


_idle: ContextVar[bool] = ContextVar("idle", default=False)


@contextmanager
def no_training() -> Iterator[None]:
    """Optimisers return what they are given: for who wants to know the form of results, not their values."""
    token = _idle.set(True)
    try:
        yield
    finally:
        _idle.reset(token)


# ---------------------------------------------------------------------------------------------------------------------
# Optimisers: values that minimise. What they remember dies with the call.


@dataclass(frozen=True)
class Optimiser:
    """Minimise a loss from given params over mini-batches."""

    lr: float = setting(0.01, "learning rate", "common to the DC-PFL and pFedES papers")
    epochs: int = setting(5, "passes over the data", "FedDW, FedPD and SCD; DC-PFL and pFedES search 1 to 100")
    batch_size: int = setting(32, "rows per step", "smallest of the DC-PFL grid")
    weight_decay: float = setting(1e-3, "L2 penalty added to the gradient", "public code of FedGH and pFedES")
    clip: float = setting(50.0, "largest norm of the whole gradient; 0 for none", "public code of FedGH and pFedES")

    def __post_init__(self) -> None:
        within(self, 1, "batch_size")
        within(self, 0, "lr", "epochs", "weight_decay", "clip")

    def fit(self, loss: Loss, params: Params, client: Client, k: Key, correct: Correct | None = None) -> Params:
        """Train on a client's data."""
        return self.run(loss, params, client.batches(k, self.epochs, self.batch_size), correct)

    def run(self, loss: Loss, params: Params, batches: Iterable[Batch], correct: Correct | None = None) -> Params:
        """Train on given batches; ``correct`` may change each gradient before it is used."""
        params = params if is_batched() else _training_copy(params)
        memory: dict[str, Params] = {}
        for at, batch in enumerate(batches if not _idle.get() else ()):
            grads, stats = self._gradient(loss, params, batch)
            grads = correct(grads) if correct else grads
            if is_batched() and not at:  # not before: until now all clients may have shared one
                params = vmap.copies(params)
            if is_batched() and not vmap.all_clients_have_rows(batch.w):
                params = self._masked(params, grads, stats, memory, batch)
            else:
                with torch.no_grad():
                    self._apply(params, self._clipped(grads), memory)
                params |= stats
        return {name: v.detach().contiguous() for name, v in params.items()}

    def _gradient(self, loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
        """What a step goes by, and the new running statistics."""
        return gradient(loss, params, batch)

    def batches(self, x: Tensor, y: Tensor, k: Key) -> Iterator[Batch]:
        """Shuffled batches of data that is not a client's: public, or made by the server."""
        for epoch in range(self.epochs):
            own = fold(k, epoch)
            for i, rows in enumerate(permutation(fold(own, 0), len(x)).split(self.batch_size)):
                yield Batch(x[rows], y[rows], torch.ones(len(rows)), fold(fold(own, 1), i), {}, full=True)

    def _masked(self, params: Params, grads: Params, stats: Params, memory: dict[str, Params], b: Batch) -> Params:
        """One update that leaves a client whose batch is all padding as it was."""
        live = b.w.sum() > 0
        before = {slot: {name: v.clone() for name, v in values.items()} for slot, values in memory.items()}
        after = {name: v.clone() for name, v in params.items()}
        self._apply(after, self._clipped(grads), memory)
        after |= stats
        for slot, values in memory.items():
            old = before.get(slot) or zeros(values)
            memory[slot] = {name: torch.where(live, v, old[name]) for name, v in values.items()}
        return {name: torch.where(live, v, params[name]) for name, v in after.items()}

    def _clipped(self, grads: Params) -> Params:
        each = list(grads.values())
        if self.clip <= 0 or (is_batched() and vmap.all_within(each, self.clip - 1e-6)):
            return grads
        size = _norm(each) + 1e-6
        if not is_batched() and size <= self.clip:  # common, and spares a pass over memory
            return grads
        scale = (self.clip / size).clamp(max=1.0)
        return {name: g * scale for name, g in grads.items()}

    @abstractmethod
    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        """Move the weights in ``params`` and the slots in ``memory``, in place: both belong to this call alone."""


def _norm(each: Sequence[Tensor]) -> Tensor:
    """That of all of them: one pass over memory, no copies."""
    norms = vmap.norms(each) if is_batched() else torch._foreach_norm(list(each))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return norm


def _training_copy(params: Params) -> Params:
    """Copies to write into, made once what they would otherwise be made at every step: laid out, and leaves."""
    copies = {name: to_layout(v.detach().clone(), torch.channels_last) for name, v in params.items()}
    return {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in copies.items()}
