"""MOON. Li et al., CVPR 2021, Algorithm 1. https://arxiv.org/abs/2103.16257

client:  w_k = argmin CE + mu / |B| sum_i l_i, from w_t;  z, z_t, z': features of x_i under w, w_t and the last w_k
         l_i = -log [e^(cos(z, z_t) / tau) / (e^(cos(z, z_t) / tau) + e^(cos(z, z') / tau))]
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

A client that takes part for the first time has no last model, and no such term. The other two models are in evaluation
mode. Features are what the last layer sees; the paper adds a projection before it, which a model may bring.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Client, Key, Need, Params, Round, Step, Term, Traits, about, payload, setting, within, wmean
from .fedavg import Averaging, Global, Update


@payload
class State:
    params: Params = about("the model this client sent last")
    seen: Tensor = about("whether it ever sent one []")


@dataclass(frozen=True)
class MOON(Averaging[State]):
    mu: float = setting(1.0, "strength of the contrast", "the authors' default; 5 with a projection, and in FedDW")
    tau: float = setting(0.5, "temperature", "paper")

    traits: ClassVar[Traits] = Averaging.traits._replace(
        needs=frozenset({Need.SAME_ARCHITECTURE, Need.ROW_FEATURES}), variants={"feddw": {"mu": 5.0}}
    )

    def __post_init__(self) -> None:
        within(self, 0, "mu")
        within(self, 0.001, "tau")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init(), torch.tensor(False))

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        up = self.train(down, client, k, *([self._contrast(down, state, client)] if self.mu else []))
        return up, State(up.params, torch.ones_like(state.seen))

    def _contrast(self, down: Global, state: State, client: Client) -> Term:
        def term(s: Step) -> Tensor:
            towards, away = (client.model.features(params, s.batch.x) for params in (down.params, state.params))
            return self.mu * state.seen * wmean(contrast(s.features, towards, away, self.tau), s.batch.w)

        return term

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return up.params if up else down.params

    def reduces_to(self) -> str | None:
        return "With mu = 0 this is FedAvg." if self.mu == 0 else None


def contrast(z: Tensor, towards: Tensor, away: Tensor, tau: float) -> Tensor:
    """Return l_i of each row: the cross-entropy of the logits (cos(z, z_t), cos(z, z')) / tau for the first."""
    unit = [F.normalize(v, eps=1e-8) for v in (z, towards, away)]
    return F.softplus((unit[0] * (unit[2] - unit[1])).sum(1) / tau)
