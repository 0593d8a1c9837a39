"""Adam."""

from dataclasses import dataclass

import torch

from ..hyperparams import setting
from ..payloads import Params
from .base import Memory, Optimiser


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam with bias correction; its weight decay is the L2 penalty of the original."""

    lr: float = setting(1e-3, "learning rate", "FedDW paper")
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient", "FedDW paper")
    clip: float = setting(0.0, "largest norm of the whole gradient; 0 for none", "FedDW paper")
    beta1: float = setting(0.9, "memory of the mean gradient", "Kingma and Ba 2015")
    beta2: float = setting(0.999, "memory of the mean squared gradient", "Kingma and Ba 2015")
    eps: float = setting(1e-8, "added to the denominator", "Kingma and Ba 2015")

    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        first, second, count = (memory.setdefault(slot, {}) for slot in ("first", "second", "count"))
        for name, g in grads.items():
            g = g.add(params[name], alpha=self.weight_decay) if self.weight_decay else g
            for slot, beta, value in ((first, self.beta1, g), (second, self.beta2, g * g)):
                slot[name] = slot[name].mul_(beta).add_(value, alpha=1 - beta) if name in slot else value * (1 - beta)
            count[name] = count[name] + 1 if name in count else torch.ones_like(g.sum())
            mean = first[name] / (1 - self.beta1 ** count[name])
            spread = (second[name] / (1 - self.beta2 ** count[name])).sqrt() + self.eps
            params[name].sub_(mean / spread, alpha=self.lr)
