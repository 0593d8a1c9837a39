"""Stochastic gradient descent with momentum."""

from dataclasses import dataclass

from .. import vmap
from ..hyperparams import setting, within
from ..payloads import Params
from .base import Memory, Optimiser
from .sgd_step import Rates, fused_sgd_step


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with heavy-ball momentum."""

    momentum: float = setting(0.9, "share of the last step that is kept", "public code of FedGH and pFedES")

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, "momentum", high=1)

    @property
    def _rates(self) -> Rates:
        return Rates(self.lr, self.momentum, self.weight_decay)

    @property
    def plain_rates(self) -> Rates | None:
        return self._rates

    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        slot = memory.setdefault("velocity", {})
        velocity = [slot[name] for name in grads if name in slot]  # of all of them or, before the first step, of none
        step = vmap.sgd_step if vmap.is_batched() else fused_sgd_step
        moved = step([params[name] for name in grads], list(grads.values()), velocity, self._rates)
        if self.momentum:
            slot.update(zip(grads, moved, strict=True))
