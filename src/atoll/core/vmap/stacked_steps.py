"""Steps of SGD on the stacked tensors of many clients."""

from collections.abc import Callable, Iterator
from itertools import compress

import torch
from torch import Tensor

from ..optim.sgd_step import Rates, fused_sgd_step, sgd_step
from ..torch_private import norm_of_each

Step = Callable[[list[Tensor], list[Tensor], list[Tensor], Rates], list[Tensor]]
VECTOR = 16  # numbers that a processor can take at a time


def step_stacked(weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], rates: Rates) -> list[Tensor]:
    """Take a step by fused kernels, except for tensors whose last numbers these would round in another way.

    Kernels round the numbers after the last whole vector of the processor in another way. In a stack, the number of
    clients decides which client these numbers belong to, and no client's result may depend on that. Arguments and
    result are those of :func:`~atoll.core.optim.sgd_step.sgd_step`.
    """
    if not rates.momentum:
        return fused_sgd_step(weights, grads, [], rates)
    odd = [w.shape[1:].numel() % VECTOR != 0 for w in weights]

    def step(take_step: Step, chosen: list[bool]) -> Iterator[Tensor]:
        some, own, before = (list(compress(each, chosen)) for each in (weights, grads, velocity))
        return iter(take_step(some, own, before, rates))

    fused, others = step(fused_sgd_step, [not it for it in odd]), step(sgd_step, odd)
    return [next(others) if it else next(fused) for it in odd]


def clip_stacked(grads: list[Tensor], most: float) -> list[Tensor]:
    """Scale each client's gradient down to the norm ``most``, unless no client's gradient can be longer."""
    if are_all_within(grads, most - 1e-6):
        return grads
    norms = torch.linalg.vector_norm(torch.stack([norm_rows(g) for g in grads]), dim=0)
    scale = (most / (norms + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.ndim - 1)) for g in grads]


def are_all_within(stacks: list[Tensor], most: float) -> bool:
    """Return True if the norm of all clients' tensors together is at most ``most``, so that no client's is above."""
    return bool(torch.linalg.vector_norm(torch.stack(norm_of_each(stacks))) <= most)


def norm_rows(stack: Tensor) -> Tensor:
    """Return the norm of each client's tensor."""
    norm: Tensor = torch.linalg.vector_norm(stack, dim=tuple(range(1, stack.ndim))) if stack.ndim > 1 else stack.abs()
    return norm
