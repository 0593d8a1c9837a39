"""One step of stochastic gradient descent, by an operation at a time or by one fused kernel."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..torch_private import add_each_, fused_sgd


class Rates(NamedTuple):
    """The numbers that a step depends on."""

    lr: float
    momentum: float
    weight_decay: float


def sgd_step(weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], rates: Rates) -> list[Tensor]:
    """Move the weights in place: v <- momentum v + (g + weight_decay w), then w <- w - lr v.

    Args:
        weights: tensors to move.
        grads: the gradient of each.
        velocity: the velocity of each; empty before the first step, and without momentum.
        rates: learning rate, momentum and weight decay.

    Returns:
        The new velocity of each; empty without momentum.
    """
    moved = []
    for at, (w, g) in enumerate(zip(weights, grads, strict=True)):
        step = torch.add(g, w, alpha=rates.weight_decay)
        if velocity:
            step.add_(velocity[at], alpha=rates.momentum)
        w.add_(step, alpha=-rates.lr)
        moved.append(step)
    return moved if rates.momentum else []


def fused_sgd_step(weights: list[Tensor], grads: list[Tensor], velocity: list[Tensor], rates: Rates) -> list[Tensor]:
    """Take the step of :func:`sgd_step` in one pass over memory. The velocity is written in place."""
    if not weights:
        return []
    if not rates.momentum and not rates.weight_decay:
        add_each_(weights, grads, alpha=-rates.lr)
        return []
    kernel = fused_sgd()
    if kernel is None:
        return sgd_step(weights, grads, velocity, rates)
    first = bool(rates.momentum) and not velocity
    velocity = [torch.empty_like(w) for w in weights] if first else velocity
    kernel(
        weights, list(map(_laid_as, grads, weights)), velocity,
        weight_decay=rates.weight_decay, momentum=rates.momentum, lr=rates.lr,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=first,
    )  # fmt: skip
    return velocity


def _laid_as(g: Tensor, w: Tensor) -> Tensor:
    """Return a gradient that lies in memory as the weights do: fused kernels go by memory alone."""
    return g if g.stride() == w.stride() else torch.empty_like(w).copy_(g)
