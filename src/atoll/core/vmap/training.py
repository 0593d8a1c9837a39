"""The training loop for many clients at once: the results of the plain loop, for clients of different sizes."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...utils.signals import stop_if_requested
from ..batch import Batch
from ..batch_order import (
    BatchOrder,
    EpochOrder,
    StepOrder,
    count_batches,
    draw_epoch,
    draw_epoch_by_torch,
    draw_step_by_torch,
)
from ..optim import sgd_step as plain
from ..optim.sgd_step import Rates
from ..optim.training_loss import record_loss
from ..params import weights, zeros
from ..payloads import Params
from ..prng import Key
from . import functorch, linear_chain
from .functorch import current_clients
from .operations import all_clients_have_rows, all_within, copies, norms, on_stacked, take

if TYPE_CHECKING:
    from ..client import Client
    from ..losses import Loss
    from ..optim.base import Correct, Memory, Optimiser

Step = Callable[[list[Tensor], list[Tensor], list[Tensor], Rates], list[Tensor]]
VECTOR = 16  # numbers that a processor can take at a time


def run(
    optimiser: "Optimiser",
    loss: "Loss",
    params: Params,
    batches: Iterable[Batch],
    correct: "Correct | None",
    memory: "Memory",
) -> tuple[Params, "Memory", Tensor]:
    """Train many clients, each from its params and memory and on its batches; see ``Optimiser.run``."""
    memory = {slot: copies(values) for slot, values in memory.items()}
    steps = torch.zeros(())
    for at, batch in enumerate(batches):
        stop_if_requested()
        grads, stats, value = optimiser._slope(loss, params, batch)
        record_loss(value, batch)
        grads = correct(grads) if correct else grads
        if at == 0:  # until now all clients may have shared their params
            params = copies(params)
        if all_clients_have_rows(batch.w):
            with torch.no_grad():
                optimiser._apply(params, optimiser._clipped(grads), memory)
            params |= stats
            steps = steps + 1
        else:
            params = _masked_update(optimiser, params, grads, stats, memory, batch)
            steps = steps + (batch.w.sum() > 0)
    return {name: v.detach().contiguous() for name, v in params.items()}, memory, steps


def _masked_update(
    optimiser: "Optimiser", params: Params, grads: Params, stats: Params, memory: "Memory", batch: Batch
) -> Params:
    """Take one step that leaves a client whose batch is all padding as it was, momentum included."""
    live = batch.w.sum() > 0
    before = {slot: {name: v.clone() for name, v in values.items()} for slot, values in memory.items()}
    after = {name: v.clone() for name, v in params.items()}
    optimiser._apply(after, optimiser._clipped(grads), memory)
    after |= stats
    for slot, values in memory.items():
        old = before.get(slot) or zeros(values)
        memory[slot] = {name: torch.where(live, v, old[name]) for name, v in values.items()}
    return {name: torch.where(live, v, params[name]) for name, v in after.items()}


def slope(loss: "Loss", params: Params, batch: Batch) -> tuple[Params, Params, Tensor]:
    """Return each client's gradient with respect to the weights, its new running statistics and its loss."""
    moving = weights(params)
    chain = getattr(loss, "linear_chain", None)
    if chain is not None and (found := linear_chain.slope(chain, moving, batch)) is not None:
        return found[0], {}, found[1]
    fixed = {name: v for name, v in params.items() if name not in moving}

    def with_stats(w: Params) -> tuple[Tensor, tuple[Params, Tensor]]:
        b = batch._replace(stats={})
        value = loss(w | fixed, b)
        return value, (b.stats, value)

    grads, (stats, value) = functorch.gradient(with_stats, moving)
    return grads, {name: v.detach() for name, v in stats.items()}, value.detach()


def clip_by_norm(grads: Params, most: float) -> Params:
    """Scale each client's gradient down to the norm ``most``, unless no client's gradient can be longer."""
    each = list(grads.values())
    if all_within(each, most - 1e-6):
        return grads
    scale = (most / (torch.linalg.vector_norm(torch.stack(norms(each))) + 1e-6)).clamp(max=1.0)
    return {name: g * scale for name, g in grads.items()}


def sgd_step(weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], rates: Rates) -> list[Tensor]:
    """Take one step of SGD for each client; see :func:`~atoll.core.optim.sgd_step.sgd_step`."""
    if current_clients() is None:  # fused kernels know nothing of torch.func
        return plain.sgd_step(weights, grads, velocity, rates)
    return on_stacked(partial(_step_stacked, rates=rates), weights, grads, velocity)


def _step_stacked(weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], rates: Rates) -> list[Tensor]:
    """Take the step by fused kernels, except for tensors whose last numbers these would round in another way.

    Kernels round the numbers after the last whole vector of the processor in another way. In a stack, the number of
    clients decides which client these numbers belong to, and no client's result may depend on that.
    """
    if not rates.momentum:
        return plain.fused_sgd_step(weights, grads, [], rates)
    odd = [w.shape[1:].numel() % VECTOR != 0 for w in weights]

    def step(take_step: Step, chosen: list[bool]) -> Iterator[Tensor]:
        some, own, before = (list(compress(each, chosen)) for each in (weights, grads, velocity))
        return iter(take_step(some, own, before, rates))

    fused, others = step(plain.fused_sgd_step, [not it for it in odd]), step(plain.sgd_step, odd)
    return [next(others) if it else next(fused) for it in odd]


def batches(client: "Client", k: Key, epochs: float, sizes: list[int], steps: int | None) -> Iterator[Batch]:
    """Yield the batches of many clients; see ``Client.batches``."""
    for rows, w, k_dropout, k_augment in _order(client, k, epochs, sizes, steps):
        x, y = take([client.x, client.y], rows)
        x = x if client.augment is None else client.augment(x, k_augment)
        yield Batch(x, y, w, k_dropout, {})


def _order(client: "Client", k: Key, epochs: float, sizes: list[int], steps: int | None) -> Iterator[BatchOrder]:
    if steps is None:
        yield from _epochs(client, k, epochs, sizes)
    elif (
        client.has_batch_statistics
    ):  # padding would enter batch statistics, so all clients of a call have equally many rows
        yield from _epochs(client, k, steps / len(sizes), sizes)
    else:
        order = StepOrder(sizes)
        for step in range(steps):
            if current_clients() is None:
                yield draw_step_by_torch(k, client.n, step, sizes)
            else:
                yield on_stacked(partial(order.draw, step=step), k, client.n)


def _epochs(client: "Client", k: Key, epochs: float, sizes: list[int]) -> Iterator[BatchOrder]:
    """Draw whole epochs of the largest client, and of the last part of one as many batches as each client's share."""
    for epoch in range(ceil(epochs)):
        drawn = _draw_epoch(k, client.n, epoch, sizes)
        if epochs - epoch >= 1:
            yield from drawn
            continue
        share = _share(client.n, epochs - epoch, sizes)
        for at, batch in enumerate(drawn[: count_batches(epochs - epoch, len(sizes))]):
            rows, w, k_dropout, k_augment = batch
            yield rows, w * (at < share), k_dropout, k_augment


def _share(n: Tensor, part: float, sizes: list[int]) -> Tensor:
    """Return the number of batches in a part of an epoch of each client, whose rows are ``n``."""
    starts = torch.tensor(sizes, device=n.device).cumsum(0) - torch.tensor(sizes, device=n.device)
    counts = [count_batches(part, batches) for batches in range(len(sizes) + 1)]
    return torch.tensor(counts, device=n.device).index_select(0, (starts < n).sum().reshape(1))


def _draw_epoch(k: Key, n: Tensor, epoch: int, sizes: list[int]) -> EpochOrder:
    if current_clients() is None:
        return draw_epoch_by_torch(k, n, epoch, sizes)
    return on_stacked(partial(draw_epoch, epoch=epoch, sizes=sizes), k, n)
