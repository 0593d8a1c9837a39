"""APFL. Deng et al., arXiv 2020, Algorithm 1. https://arxiv.org/abs/2003.13461

client:  w_k <- w_k - eta grad f(w_k), from w_t;   with u = alpha_k v_k + (1 - alpha_k) w_k, and w_k constant in it,
         v_k <- v_k - eta alpha_k grad f(u);   alpha_k <- alpha_k - eta <v_k - w_k, grad f(u)>, cut to [0, 1]
         up: w_k;   it predicts by u
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k, over the clients of the round

All three take a step on every batch, from the same gradients. Momentum, weight decay and clipping are those of optim,
for w and v apart; alpha takes plain steps. The paper takes a plain mean of clients; here samples count. Running
statistics of u belong to v.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    BUFFERS,
    SGD,
    Batch,
    Client,
    Key,
    Optimiser,
    Params,
    Round,
    Traits,
    about,
    add,
    payload,
    setting,
    sub,
    weights,
    within,
)
from ..core.optim.base import Memory
from .fedavg import Averaging, Global, Update

OWN, ALPHA = "own/", "alpha"  # Names of v and alpha while all three are trained.


@payload
class State:
    params: Params = about("v_k, the personal model")
    alpha: Tensor = about("alpha_k, its share in predictions")


@dataclass(frozen=True)
class APFL(Averaging[State]):
    alpha: float = setting(0.5, "share of the personal model in predictions, at first", "chosen here")
    adaptive: bool = setting(True, "learn alpha; false keeps it as it is", "paper")
    alpha_lr: float = setting(0.01, "learning rate of alpha", "chosen here: that of the weights")

    traits: ClassVar[Traits] = Averaging.traits._replace(family="dual model")

    def __post_init__(self) -> None:
        within(self, 0, "alpha", high=1)
        within(self, 0, "alpha_lr")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init(), torch.tensor(self.alpha))

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        f = client.objective()

        def loss(params: Params, b: Batch) -> Tensor:
            shared, own, alpha = _apart(params)
            beside = b._replace(stats={})  # The two models may have running statistics of the same name.
            mixed = mix({name: v.detach() for name, v in shared.items()}, own, alpha)
            value = f(shared, b) + f(mixed, beside)
            b.stats.update(_owned(beside.stats))
            return value

        start = down.params | _owned(state.params) | {ALPHA: state.alpha}
        optim = _Three(each=self.optim, alpha_lr=self.alpha_lr if self.adaptive else 0.0)
        params, own, alpha = _apart(optim.run(loss, start, self.optim.client_batches(client, k)))
        return Update(params, client.n, self.terms().report(params, client)), State(own, alpha)

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return mix(up.params if up else down.params, state.params, state.alpha)

    def reduces_to(self) -> str | None:
        if self.adaptive or 0 < self.alpha < 1:
            return None
        return f"With a constant alpha of {self.alpha:g} clients predict by {'v' if self.alpha else 'w'} alone."


def mix(shared: Params, own: Params, alpha: Tensor) -> Params:
    """Return alpha v + (1 - alpha) w, with the running statistics of v."""
    return own | add(weights(shared), sub(weights(own), shared), alpha)


@dataclass(frozen=True)
class _Three(Optimiser):
    """Optimiser that steps w and v by one optimiser, clips each by itself, and moves alpha by plain steps."""

    each: Optimiser = SGD()
    alpha_lr: float = 0.0

    def _clipped(self, grads: Params) -> Params:
        shared, own, alpha = _apart(grads)
        return self.each._clipped(shared) | _owned(self.each._clipped(own)) | {ALPHA: alpha}

    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        self.each._apply(params, {name: g for name, g in grads.items() if name != ALPHA}, memory)
        params[ALPHA].copy_((params[ALPHA] - self.alpha_lr * grads[ALPHA]).clamp(0, 1))


def _owned(params: Params) -> Params:
    """Mark the names of v; running statistics keep their own prefix in front."""
    return {
        f"{BUFFERS}{OWN}{name.removeprefix(BUFFERS)}" if name.startswith(BUFFERS) else OWN + name: v
        for name, v in params.items()
    }


def _apart(params: Params) -> tuple[Params, Params, Tensor]:
    """Return w, v and alpha, under the names that the model uses."""
    own = {name.replace(OWN, "", 1): v for name, v in params.items() if OWN in name}
    return {name: v for name, v in params.items() if OWN not in name and name != ALPHA}, own, params[ALPHA]
