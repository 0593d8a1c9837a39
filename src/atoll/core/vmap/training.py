"""The training loop for many clients at once: the results of the plain loop, for clients of different sizes."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...utils.signals import stop_if_requested
from ..batch import Batch
from ..optim import sgd_step as plain
from ..optim.sgd_step import Rates
from ..optim.training_loss import record_loss
from ..params import weights, zeros
from ..payloads import Params
from . import chain_training, functorch, linear_chain
from .batches import ClientBatches
from .functorch import current_clients
from .operations import all_clients_have_rows, all_within, copies, norms, on_stacked
from .stacked_steps import step_stacked

if TYPE_CHECKING:
    from ..losses import Loss
    from ..optim.base import Correct, Memory, Optimiser


def run(
    optimiser: "Optimiser",
    loss: "Loss",
    params: Params,
    batches: Iterable[Batch],
    correct: "Correct | None",
    memory: "Memory",
) -> tuple[Params, "Memory", Tensor]:
    """Train many clients, each from its params and memory and on its batches; see ``Optimiser.run``."""
    if correct is None and isinstance(batches, ClientBatches):
        trained = chain_training.train(optimiser, loss, params, batches, memory)
        if trained is not None:
            return trained
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
    return on_stacked(partial(step_stacked, rates=rates), weights, grads, velocity)
