"""FedAMP. Huang et al., AAAI 2021, Algorithm 1. https://arxiv.org/abs/2007.03797

client:  w_k <- argmin CE(w; D_k) + lam / (2 alpha) ||w - u_k||^2, from where it stopped;   up: w_k
server:  u_k = xi_kk w_k + sum_{j != k} xi_kj w_j;   xi_kj = alpha A'(||w_k - w_j||^2);   xi_kk = 1 - sum_{j != k} xi_kj
         with A'(x) = exp(-x / sigma) / sigma

The server keeps the last model of every client that has taken part; w_k is the initial model before. If the other
shares sum to more than 1, alpha is too large for the paper's steps; they are then scaled to 1. alpha is constant, where
the paper lets it fall. Running statistics stay at home. The heuristic with cosines is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp
from typing import Any, ClassVar

import torch

from ..core import (
    SGD,
    Client,
    Key,
    Method,
    Need,
    Nothing,
    Optimiser,
    Params,
    PerClient,
    Reply,
    Role,
    Round,
    Task,
    Traits,
    about,
    add,
    payload,
    setting,
    sqnorm,
    sub,
    weights,
    within,
)
from ..typing import ClientId
from .fedprox import Proximal
from .local import State


@payload
class Cloud:
    params: Params = about("u_k, the mixture of models that is near to the client's")


@payload
class Update:
    params: Params = about("w_k, the model after local training", role=Role.MODEL)


@payload
class Kept:
    params: Params = about("w_k, the client's last model")


@dataclass(frozen=True)
class FedAMP(Method[Nothing, State, Cloud, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    lam: float = setting(1.0, "strength of the pull to u_k, over alpha", "chosen here")
    alpha: float = setting(1.0, "step of the server, and divisor of the pull", "chosen here")
    sigma: float = setting(25.0, "scale of squared distances between models", "chosen here")

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}),
        why_uploads="it compares the models of clients with each other",
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam")
        within(self, 1e-9, "alpha", "sigma")

    def init_server(self, task: Task, k: Key) -> Nothing:
        return Nothing()

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> Kept:
        return Kept({})

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast_from_all(
        self, server: Nothing, states: PerClient[Kept], to: ClientId, task: Task, r: Round, k: Key
    ) -> Cloud:
        own = states.get(to, Kept(weights(task.models[to].init()))).params
        others = {name: torch.zeros_like(v, dtype=torch.double) for name, v in own.items()}
        total = 0.0
        for i in states:
            if i != to:
                w = states[i].params
                share = self.alpha * self.attention(float(sqnorm(sub(own, w))))
                total += share
                others = add(others, w, share)
        scale = max(1.0, total)
        return Cloud({name: ((1 - total / scale) * v + others[name] / scale).to(v.dtype) for name, v in own.items()})

    def attention(self, squared: float) -> float:
        """Return A' of a squared distance."""
        return exp(-squared / self.sigma) / self.sigma

    def client_update(self, down: Cloud, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        pull = Proximal(self.lam / self.alpha).bind({}, down.params, client)
        params = self.optim.fit(client.objective(pull), state.params, client, k)
        return Update(weights(params)), State(params)

    def serve_client(
        self, server: Nothing, per_client: Kept, reply: Reply[Update], task: Task, r: Round, k: Key
    ) -> tuple[Nothing, Kept]:
        return Nothing(), Kept(reply.upload.params)

    def aggregate(self, server: Nothing, replies: Iterable[Reply[Any]], task: Task, r: Round, k: Key) -> Nothing:
        return server

    def personal_params(self, down: Cloud, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def why_closed(self) -> str | None:
        return "the server mixes models for clients by their own, and has none of a new client"

    def reduces_to(self) -> str | None:
        return "With lam = 0 every client trains alone, as by Local." if self.lam == 0 else None
