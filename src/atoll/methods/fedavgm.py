"""FedAvgM. Hsu et al., arXiv 2019. https://arxiv.org/abs/1909.06335

client:  w_k = SGD(w_t; D_k)
server:  delta = w_t - sum_k n_k w_k / sum_k n_k;  v <- beta v + delta;  w_{t+1} = w_t - eta_s v

Public codes differ: some take Nesterov's step, w_t - eta_s (delta + beta v) with the new v, others scale delta by
1 - beta (both are switches). Running statistics have no momentum; they are averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ..core import Key, Params, Reply, Round, Task, Traits, about, payload, setting, sub, weights, within, zeros
from ..errors import AtollError
from .fedavg import FedAvg, Global, Update


@payload
class Server(Global):
    velocity: Params = about("v, the decaying sum of changes")


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    beta: float = setting(0.9, "share of the last velocity that is kept", "common choice, in the paper's grid")
    server_lr: float = setting(1.0, "eta_s, the server's learning rate", "paper")
    nesterov: bool = setting(False, "look ahead: add beta times the new velocity to the change", "chosen here")
    dampening: bool = setting(False, "scale changes by 1 - beta, so that v is their mean", "chosen here")

    traits: ClassVar[Traits] = FedAvg.traits

    def __post_init__(self) -> None:
        within(self, 0, "beta", high=1)
        within(self, 0, "server_lr")
        if self.nesterov and self.dampening:
            raise AtollError("FedAvgM: nesterov and dampening exclude each other. Set one of them to false.")

    def init_server(self, task: Task, k: Key) -> Server:
        start = super().init_server(task, k)
        return Server(start.params, start.extra, zeros(weights(start.params)))

    def aggregate(  # type: ignore[override]  # Every server state comes from init_server.
        self, server: Server, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key
    ) -> Server:
        average = super().aggregate(server, replies, task, r, k)
        old, new, v = weights(server.params), weights(average.params), server.velocity
        share = 1 - self.beta if self.dampening else 1.0
        velocity = {name: self.beta * v[name] + share * d for name, d in sub(old, new).items()}
        # This form of w - eta v leaves no rounding error of w if beta = 0 and eta = 1.
        eta = share * self.server_lr
        kept = {name: (1 - eta) * w + eta * new[name] for name, w in old.items()}
        moved = sub(kept, velocity if self.nesterov else v, self.server_lr * self.beta)
        return Server(average.params | moved, average.extra, velocity)

    def reduces_to(self) -> str | None:
        if self.beta == 0 and self.server_lr == 1:
            return "With beta = 0 and server_lr = 1 this is FedAvg."
        return None
