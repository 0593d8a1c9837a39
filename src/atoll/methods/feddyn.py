"""FedDyn. Acar et al., ICLR 2021, Algorithm 1. https://arxiv.org/abs/2111.04263

client:  theta_k = argmin CE(theta; D_k) - <g_k, theta> + alpha/2 ||theta - theta_t||^2, from theta_t
         g_k <- g_k - alpha (theta_k - theta_t): after an exact minimisation the gradient of the loss at theta_k
server:  h <- h - alpha/N sum_k (theta_k - theta_t);  theta_{t+1} = 1/m sum_k theta_k - h / alpha
         sums over the m clients of the round, of all N

All clients count the same, and have one alpha; the released code divides it by a client's share of the samples, times
N. That code also judges means of the clients' models; here the global model is theta. Running statistics are averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Step
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Term
from ..core.params import sub, weights, zeros
from ..core.payloads import Params, about, payload
from ..core.prng import Key
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Traits
from .fedavg import Averaging, Global, Update
from .fedprox import Proximal


@payload
class Server(Global):
    h: Params = about("h, the mean of the memories of all clients")


@payload
class State:
    g: Params = about("g_k, the client's memory of its gradient")


@dataclass(frozen=True)
class FedDyn(Averaging[State]):
    alpha: float = setting(0.01, "strength of the dynamic regularisation", "public code")

    traits: ClassVar[Traits] = Averaging.traits._replace(
        star_only="its server keeps the mean of all clients' memories, so that every change must reach it in full"
    )

    def __post_init__(self) -> None:
        within(self, 1e-6, "alpha")

    def init_server(self, task: Task, k: Key) -> Server:
        start = super().init_server(task, k)
        return Server(start.params, start.extra, zeros(weights(start.params)))

    def init_client(self, client: Client, k: Key) -> State:
        return State(zeros(weights(client.model.init())))

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        pull = Proximal(self.alpha).bind({}, down.params, client)
        up = self.train(down, client, k, _against(state.g), pull)
        return up, State(sub(state.g, sub(weights(up.params), down.params), self.alpha))

    def aggregate(  # type: ignore[override]  # Every server state comes from init_server.
        self, server: Server, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key
    ) -> Server:
        m = 0

        def equally() -> Iterable[Reply[Update]]:
            nonlocal m
            for reply in replies:
                m += 1
                yield replace(reply, upload=replace(reply.upload, n=torch.ones(())))

        average = super().aggregate(server, with_policy_of(replies, equally()), task, r, k)
        change = sub(weights(average.params), server.params)
        h = sub(server.h, change, self.alpha * m / len(task.clients))
        params = sub(weights(average.params), h, 1 / self.alpha)
        return Server(average.params | params, average.extra, h)

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return up.params if up else down.params


def _against(g: Params) -> Term:
    """Return the term -<g, theta>."""

    def term(s: Step) -> Tensor:
        return -sum(((v * s.params[name]).sum() for name, v in g.items()), start=torch.zeros(()))

    return term
