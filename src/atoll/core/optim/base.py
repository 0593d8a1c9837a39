"""The training loop and the gradient it follows."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ...errors import AtollError
from .. import vmap
from ..batch import Batch
from ..batch_order import count_batches
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
from .sgd_step import Rates
from .training_loss import record_loss

Correct = Callable[[Params], Params]
Memory = dict[str, Params]  # what an optimiser remembers between steps, by slot: velocity, first, second, count


class Trained(NamedTuple):
    """The result of local training.

    Attributes:
        params: the trained params.
        memory: what the optimiser remembers, such as its velocity, to go on from.
        steps: number of steps taken, 0-dimensional; batches of padding alone do not count.
    """

    params: Params
    memory: Memory
    steps: Tensor


class Slope(NamedTuple):
    """A loss at given params.

    Attributes:
        grads: gradient with respect to the weights.
        stats: the new running statistics.
        loss: value of the loss, 0-dimensional, without a gradient.
    """

    grads: Params
    stats: Params
    loss: Tensor


def gradient(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
    """Return the gradient of a loss with respect to the weights, and the new running statistics.

    Args:
        loss: function of params and a batch.
        params: weights and buffers.
        batch: the rows of the step; its ``stats`` are left as they are.
    """
    found = slope(loss, params, batch)
    return found.grads, found.stats


def slope(loss: Loss, params: Params, batch: Batch) -> Slope:
    """Return a loss with its gradient; see :func:`gradient`."""
    if is_batched():
        return Slope(*vmap.slope(loss, params, batch))
    leaves = {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in params.items()}
    moving = {name: v for name, v in leaves.items() if v.requires_grad}
    stats: Params = {}
    with torch.enable_grad():
        value = loss(leaves, batch._replace(stats=stats))
    grads = torch.autograd.grad(value, tuple(moving.values()), materialize_grads=True, allow_unused=True)
    return Slope(dict(zip(moving, grads, strict=True)), {name: v.detach() for name, v in stats.items()}, value.detach())


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
    epochs: float = setting(
        5,
        "passes over the data; a fraction is a share of the batches of one pass, rounded up",
        "FedDW, FedPD and SCD; DC-PFL and pFedES search 1 to 100",
    )
    batch_size: int = setting(32, "samples per step", "smallest of the DC-PFL grid")
    weight_decay: float = setting(1e-3, "L2 penalty added to the gradient", "public code of FedGH and pFedES")
    clip: float = setting(50.0, "largest norm of the whole gradient; 0 for none", "public code of FedGH and pFedES")
    schedule: str = setting(CONSTANT, f"learning rate by rounds: {', '.join(SCHEDULES)}", "chosen here")
    steps: int | None = setting(
        None, "number of steps in place of epochs, whatever the number of samples", "chosen here"
    )

    def __post_init__(self) -> None:
        within(self, 1, "batch_size")
        if self.steps is not None:
            within(self, 1, "steps")
        within(self, 0, "lr", "epochs", "weight_decay", "clip")
        factor_at(self.schedule, 0)  # refuses a text that is no schedule

    def at(self, t: int) -> Self:
        """Return the optimiser of round ``t``, counted from 0, whose learning rate follows from the schedule."""
        if self.schedule == CONSTANT:
            return self
        return replace(self, lr=self.lr * factor_at(self.schedule, t), schedule=CONSTANT)

    def for_epochs(self, epochs: float) -> Self:
        """Return the optimiser that trains for so many epochs, whatever its own ``epochs`` or ``steps``."""
        return replace(self, epochs=epochs, steps=None)

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
            steps: number of batches in place of the optimiser's own ``steps`` or ``epochs``.

        Returns:
            The trained params.
        """
        return self.run(loss, params, self.client_batches(client, k, steps), correct)

    def train(
        self,
        loss: Loss,
        params: Params,
        client: Client,
        k: Key,
        correct: Correct | None = None,
        steps: int | None = None,
        memory: Memory | None = None,
    ) -> Trained:
        """Train on a client's data like :meth:`fit`, and return the optimiser's memory and the steps taken as well.

        ``memory`` is that of an earlier call, to go on from; None to begin anew. It is left as it is.
        """
        return self._follow(loss, params, self.client_batches(client, k, steps), correct, memory or {})

    def run(self, loss: Loss, params: Params, batches: Iterable[Batch], correct: Correct | None = None) -> Params:
        """Train on given batches, one step for each; see :meth:`fit`."""
        return self._follow(loss, params, batches, correct, {}).params

    def advance(self, loss: Loss, params: Params, batches: Iterable[Batch], memory: Memory | None = None) -> Trained:
        """Train on given batches like :meth:`run`, from ``memory`` on, and return memory and steps as well.

        Training on some batches and then, with the memory returned, on others is training on all of them.
        """
        return self._follow(loss, params, batches, None, memory or {})

    def _follow(
        self, loss: Loss, params: Params, batches: Iterable[Batch], correct: Correct | None, memory: Memory
    ) -> Trained:
        if _idle.get():
            batches = ()
        if is_batched():
            return Trained(*vmap.run(self, loss, params, batches, correct, memory))
        params = _training_copy(params)
        memory = {slot: _copies(values) for slot, values in memory.items()}
        steps = 0
        for batch in batches:
            grads, stats, value = self._slope(loss, params, batch)
            record_loss(value, batch)
            grads = correct(grads) if correct else grads
            with torch.no_grad():
                self._apply(params, self._clipped(grads), memory)
            params |= stats
            steps += batch.full or bool(batch.w.any())
        kept = {slot: {name: v.contiguous() for name, v in values.items()} for slot, values in memory.items()}
        return Trained({name: v.detach().contiguous() for name, v in params.items()}, kept, torch.tensor(float(steps)))

    def _slope(self, loss: Loss, params: Params, batch: Batch) -> Slope:
        """Return the gradient of a step, the new running statistics and the loss."""
        return slope(loss, params, batch)

    def client_batches(self, client: Client, k: Key, steps: int | None = None) -> Iterator[Batch]:
        """Yield the batches of a client's training; ``steps`` as in :meth:`fit`."""
        return client.batches(k, self.epochs, self.batch_size, self.steps if steps is None else steps)

    def batches(self, x: Tensor, y: Tensor, k: Key) -> Iterator[Batch]:
        """Yield shuffled batches of data that is not a client's: public, or made by the server."""
        pieces = -(-len(x) // self.batch_size)
        count = self.count(pieces)
        for epoch in range(-(-count // pieces) if pieces else 0):
            own = fold(k, epoch)
            order = permutation(fold(own, 0), len(x)).split(self.batch_size)
            for i, rows in enumerate(order[: count - epoch * pieces]):
                yield Batch(x[rows], y[rows], torch.ones(len(rows)), fold(fold(own, 1), i), {}, full=True)

    def count(self, per_epoch: int) -> int:
        """Return the number of steps if an epoch has ``per_epoch`` batches."""
        return count_batches(self.epochs, per_epoch) if self.steps is None else self.steps

    @property
    def plain_rates(self) -> Rates | None:
        """The numbers of a step, of an optimiser that takes plain steps of SGD; None for all others."""
        return None

    def _clipped(self, grads: Params) -> Params:
        return clip_by_norm(grads, self.clip) if self.clip > 0 else grads

    @abstractmethod
    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        """Move the weights in ``params`` and the slots in ``memory``, in place: both belong to this call alone."""


def check_goes_by_epochs(method: object, optim: Optimiser) -> None:
    """Raise an AtollError if ``optim`` counts steps, for a method whose loss depends on the epoch."""
    if optim.steps is not None:
        raise AtollError(f"{type(method).__name__} counts epochs, so steps cannot be set. Use --epochs instead.")


def _training_copy(params: Params) -> Params:
    """Return copies to write into, made once as each step would make them: leaves, in the layout of convolutions."""
    return {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in _copies(params).items()}


def _copies(params: Params) -> Params:
    return {name: to_layout(v.detach().clone(), torch.channels_last) for name, v in params.items()}
