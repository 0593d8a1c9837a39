"""Stochastic gradient descent with momentum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import vmap
from ..hyperparams import setting
from ..payload import Params
from ..vmap import is_batched
from .base import Optimiser

VECTOR = 16  # numbers that a processor can take at a time


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with heavy-ball momentum."""

    momentum: float = setting(0.9, "share of the last step that is kept", "public code of FedGH and pFedES")

    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        slot = memory.setdefault("velocity", {})
        velocity = [slot[name] for name in grads if name in slot]  # of all of them or, before the first step, of none
        moved = vmap.on_stacked(self._moved, [params[name] for name in grads], list(grads.values()), velocity)
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


def _ends_in_between(w: Tensor) -> bool:
    """Whether a client's numbers in a stack may end within a vector of the processor.

    What is fused rounds the numbers after the last whole vector in another way, and which clients these belong to
    depends on how many there are: a client's result must not.
    """
    return is_batched() and w.shape[1:].numel() % VECTOR != 0


def _laid_as(g: Tensor, w: Tensor) -> Tensor:
    """A gradient whose numbers lie in memory as those of the weights do: what is fused goes by memory alone."""
    return g if g.stride() == w.stride() else torch.empty_like(w).copy_(g)
