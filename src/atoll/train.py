"""The only training loop, the objective it minimises, and arithmetic on parameters."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import clientwise, robust
from .checks import within
from .core import BUFFERS, Batch, Client, Model, Step, laid, setting, weights
from .key import Key, fold, permutation
from .mapping import mapping_clients
from .payload import Params
from .securesum import Sum, note
from .stacks import gathered

HANDFUL = 2**20  # bytes of uploads that a mean may hold
VECTOR = 16  # numbers that a processor can take at a time

Loss = Callable[[Params, Batch], Tensor]
Term = Callable[[Step], Tensor]
Correct = Callable[[Params], Params]


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
    return F.cross_entropy(logits, b.y) if b.full else clientwise.whole(_cross_entropy, logits, b.y, b.w)


def _cross_entropy(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Classes come first meanwhile: with few of them, torch is faster across rows than within each."""
    each = F.cross_entropy(logits.flatten(0, -2).T[None], y.flatten()[None], reduction="none").view(y.shape)
    return (each * w).sum(-1) / w.sum(-1).clamp(min=1)


def wmean(v: Tensor, w: Tensor) -> Tensor:
    """Mean of ``v`` over the real rows of a batch."""
    return (v * w).sum() / w.sum().clamp(min=1)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients: plain autograd by default, torch.func where a backend maps over clients.


def gradient(loss: Loss, params: Params, batch: Batch) -> tuple[Params, Params]:
    """The gradient with respect to the weights, and the new running statistics."""
    if mapping_clients():
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

    grads, stats = clientwise.gradient(with_stats, moving)
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
        params = params if mapping_clients() else _training_copy(params)
        memory: dict[str, Params] = {}
        for at, batch in enumerate(batches if not _idle.get() else ()):
            grads, stats = self._gradient(loss, params, batch)
            grads = correct(grads) if correct else grads
            if mapping_clients() and not at:  # not before: until now all clients may have shared one
                params = clientwise.copies(params)
            if mapping_clients() and not clientwise.everybody_has_rows(batch.w):
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
        if self.clip <= 0 or (mapping_clients() and clientwise.all_within(each, self.clip - 1e-6)):
            return grads
        size = _norm(each) + 1e-6
        if not mapping_clients() and size <= self.clip:  # common, and spares a pass over memory
            return grads
        scale = (self.clip / size).clamp(max=1.0)
        return {name: g * scale for name, g in grads.items()}

    @abstractmethod
    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        """Move the weights in ``params`` and the slots in ``memory``, in place: both belong to this call alone."""


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with heavy-ball momentum."""

    momentum: float = setting(0.9, "share of the last step that is kept", "public code of FedGH and pFedES")

    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        slot = memory.setdefault("velocity", {})
        velocity = [slot[name] for name in grads if name in slot]  # of all of them or, before the first step, of none
        moved = clientwise.whole(self._moved, [params[name] for name in grads], list(grads.values()), velocity)
        if self.momentum:
            slot.update(zip(grads, moved, strict=True))

    def _moved(self, weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor]) -> list[Tensor]:
        """Take the step; the new velocity."""
        if not self.momentum:
            self._fused(weights, grads, [], first=False)
            return []
        first, velocity = not velocity, velocity or [torch.empty_like(w) for w in weights]
        odd = [at for at, w in enumerate(weights) if _ends_in_between(w)]

        def others(each: list[Tensor]) -> list[Tensor]:
            return [v for at, v in enumerate(each) if at not in odd]

        self._fused(others(weights), others(grads), others(velocity), first)
        for at in odd:
            velocity[at] = self._in_turn(weights[at], grads[at], None if first else velocity[at])
        return velocity

    def _fused(self, weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], first: bool) -> None:
        """One pass over memory."""
        if not weights:
            return
        if not self.momentum and not self.weight_decay:
            torch._foreach_add_(weights, grads, alpha=-self.lr)
            return
        torch._fused_sgd_(
            weights, list(map(_laid_as, grads, weights)), velocity,
            weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=first,
        )  # fmt: skip

    def _in_turn(self, weight: Tensor, grad: Tensor, velocity: Tensor | None) -> Tensor:
        """An operation at a time."""
        step = torch.add(grad, weight, alpha=self.weight_decay)
        velocity = step if velocity is None else step.add_(velocity, alpha=self.momentum)
        weight.add_(velocity, alpha=-self.lr)
        return velocity


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam with bias correction; its weight decay is the L2 penalty of the original."""

    lr: float = setting(1e-3, "learning rate", "FedDW paper")
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient", "FedDW paper")
    clip: float = setting(0.0, "largest norm of the whole gradient; 0 for none", "FedDW paper")
    beta1: float = setting(0.9, "memory of the mean gradient", "Kingma and Ba 2015")
    beta2: float = setting(0.999, "memory of the mean squared gradient", "Kingma and Ba 2015")
    eps: float = setting(1e-8, "added to the denominator", "Kingma and Ba 2015")

    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        first, second, count = (memory.setdefault(slot, {}) for slot in ("first", "second", "count"))
        for name, g in grads.items():
            g = g.add(params[name], alpha=self.weight_decay) if self.weight_decay else g
            for slot, beta, value in ((first, self.beta1, g), (second, self.beta2, g * g)):
                slot[name] = slot[name].mul_(beta).add_(value, alpha=1 - beta) if name in slot else value * (1 - beta)
            count[name] = count[name] + 1 if name in count else torch.ones_like(g.sum())
            mean = first[name] / (1 - self.beta1 ** count[name])
            spread = (second[name] / (1 - self.beta2 ** count[name])).sqrt() + self.eps
            params[name].sub_(mean / spread, alpha=self.lr)


def _ends_in_between(w: Tensor) -> bool:
    """Whether a client's numbers in a stack may end within a vector of the processor.

    What is fused rounds the numbers after the last whole vector in another way, and which clients these belong to
    depends on how many there are: a client's result must not.
    """
    return mapping_clients() and w.shape[1:].numel() % VECTOR != 0


def _laid_as(g: Tensor, w: Tensor) -> Tensor:
    """A gradient whose numbers lie in memory as those of the weights do: what is fused goes by memory alone."""
    return g if g.stride() == w.stride() else torch.empty_like(w).copy_(g)


def _norm(each: Sequence[Tensor]) -> Tensor:
    """That of all of them: one pass over memory, no copies."""
    norms = clientwise.norms(each) if mapping_clients() else torch._foreach_norm(list(each))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return norm


def _training_copy(params: Params) -> Params:
    """Copies to write into, made once what they would otherwise be made at every step: laid out, and leaves."""
    copies = {name: laid(v.detach().clone(), torch.channels_last) for name, v in params.items()}
    return {name: v if name.startswith(BUFFERS) else _leaf(v) for name, v in copies.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic on parameters


def add(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    return {name: v + scale * b[name] for name, v in a.items()}


def sub(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    return {name: v - scale * b[name] for name, v in a.items()}


def zeros(a: Params) -> Params:
    return {name: torch.zeros_like(v) for name, v in a.items()}


def sqnorm(a: Params) -> Tensor:
    return sum((v.square().sum() for v in a.values()), start=torch.zeros(()))


def mean(uploads: Iterable[Any], field: str, weight: str | None = None, around: Params | None = None) -> Any:
    """Weighted mean of one field over a stream of uploads, of which it holds one at a time, or a few small ones.

    Returns Params for a field of Params and a Tensor for a field that is a Tensor; raises ValueError without uploads.
    Sums are kept in double precision, so one upload comes back unchanged; integers (counters) take the largest.
    While a server aggregates under ``--robust``, a rule that holds all uploads takes its place if the method declares
    the field in ``guards``. One that measures updates does so ``around`` what clients started from: by default, the
    field of that name in the server's state.
    With ``--sums fixed`` sums are exact, but numbers are rounded to 2^-24 first.
    """
    if robust.guards(field):
        return robust.mean(uploads, field, weight, around)
    count, mass, like, counters = 0, Sum(), Params(), Params()
    sums: defaultdict[str, Sum] = defaultdict(Sum)
    for few in _handfuls(robust.noticed(uploads), field):
        values, *weights = gathered(few, field, *([weight] if weight else []))
        rows = _named(values, field)
        like = like or {name: v[0] for name, v in rows.items()}
        w = weights[0].double() if weight else torch.ones(len(few)).double()
        mass.add_all(w, torch.ones_like(w))
        for name, v in rows.items():
            if v.is_floating_point():
                sums[name].add_all(v, w)
            else:
                counters[name] = torch.maximum(counters.get(name, v[0]), v.amax(0))
        count += len(few)
    if not count:
        raise ValueError(f"There is no mean of {field!r}: there are no uploads. Leave the state as it is in that case.")
    if count == 1:
        note("one", f"a round had one client, so the sum of {field} is what that client sent.")
    means = {name: total.value().div_(mass.value()).to(like[name].dtype) for name, total in sums.items()}
    averaged = like | means | counters
    return averaged if isinstance(values, dict) else averaged[field]


def _named(value: Params | Tensor, field: str) -> Params:
    """A field as Params. A lone tensor of integers becomes one of numbers: only among weights are integers counters."""
    if isinstance(value, dict):
        return value
    return {field: value if value.is_floating_point() else value.float()}


def _handfuls(uploads: Iterable[Any], field: str) -> Iterator[list[Any]]:
    """As many uploads at a time as are small together: one by one, small models would be all overhead."""
    left = iter(uploads)
    few = list(islice(left, 1))
    size = sum([v.nbytes for upload in few for v in _named(getattr(upload, field), field).values()])
    few += islice(left, HANDFUL // max(size, 1))
    while few:
        yield few
        few = list(islice(left, len(few)))


def trainable(params: Params) -> int:
    """The number of weights."""
    return sum(v.numel() for name, v in params.items() if not name.startswith(BUFFERS))
