"""Move the global model by an adaptive optimiser of the server, as FedAdagrad, FedAdam and FedYogi do."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Key, Params, Reply, Round, Task, Traits, about, payload, setting, sub, weights, within, zeros
from .fedavg import FedAvg, Global, Update


@payload
class Server(Global):
    first: Params = about("m, the decaying mean of changes")
    second: Params = about("v, the size of changes, by which steps are divided")


@dataclass(frozen=True)
class AdaptiveServer(FedAvg):
    """Base of the three: x <- x + eta m / (sqrt(v) + tau). Subclasses say how v follows from the squared change."""

    server_lr: float = setting(0.1, "eta, the server's learning rate", "chosen here, from the paper's grid")
    tau: float = setting(1e-3, "added to the denominator; v starts at its square", "paper")
    beta1: float = setting(0.9, "share of the last m that is kept", "paper")

    traits: ClassVar[Traits] = FedAvg.traits

    def __post_init__(self) -> None:
        within(self, 0, "server_lr")
        within(self, 1e-12, "tau")
        within(self, 0, "beta1", high=1)

    @abstractmethod
    def size(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v, from the last one and the squared change."""

    def init_server(self, task: Task, k: Key) -> Server:
        start = super().init_server(task, k)
        moving = weights(start.params)
        second = {name: torch.full_like(x, self.tau**2) for name, x in moving.items()}
        return Server(start.params, start.extra, zeros(moving), second)

    def aggregate(  # type: ignore[override]  # Every server state comes from init_server.
        self, server: Server, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key
    ) -> Server:
        average = super().aggregate(server, replies, task, r, k)
        old = weights(server.params)
        change = sub(weights(average.params), old)
        first = {name: self.beta1 * m + (1 - self.beta1) * change[name] for name, m in server.first.items()}
        second = {name: self.size(v, change[name].square()) for name, v in server.second.items()}
        moved = {name: x + self.server_lr * first[name] / (second[name].sqrt() + self.tau) for name, x in old.items()}
        return Server(average.params | moved, average.extra, first, second)
