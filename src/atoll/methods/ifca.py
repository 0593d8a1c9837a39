"""IFCA. Ghosh et al., NeurIPS 2020, Algorithm 1, model averaging. https://arxiv.org/abs/2006.04088

client:  j = argmin_j CE(theta_j; D_k), over the K models it receives;   w_k = SGD(theta_j; D_k);   up: w_k and j
server:  theta_j <- sum of n_k w_k / sum of n_k, over the clients that chose j;  a model that nobody chose stays

The K models start from different random weights. Clients of the paper have equally many samples; here samples count.
Losses are taken on all training samples, in evaluation mode.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key, fold
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..core.tree import stack
from ..typing import ClientId


@payload
class Models:  # the server's state, and what it sends
    params: Params = about("theta, the K models, stacked")


@payload
class Update:
    params: Params = about("w_k, the chosen model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    choice: Tensor = about("j, the number of the chosen model", role=Role.OTHER)


@dataclass(frozen=True)
class IFCA(Method[Models, Nothing, Models, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    clusters: int = setting(4, "K, the number of models", "paper, rotated MNIST")

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}),
        why_uploads="it averages the models of the clients that made the same choice",
        guards=("params",),
        as_sent="the clients' choices",
    )

    def __post_init__(self) -> None:
        within(self, 1, "clusters")

    def init_server(self, task: Task, k: Key) -> Models:
        return Models(stack([task.model.init(fold(k, j)) for j in range(self.clusters)]))

    def broadcast(self, server: Models, to: ClientId, task: Task, r: Round, k: Key) -> Models:
        return server

    def client_update(self, down: Models, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        j = self.choose(down, client)
        params = self.optim.fit(client.objective(), _select(down.params, j), client, k)
        return Update(params, client.n, j.int()), state

    def choose(self, down: Models, client: Client) -> Tensor:
        """Return the number of the model with the least loss on the client's rows."""
        real = (torch.arange(len(client.y), device=client.y.device) < client.n).float()
        rows = Batch(client.x, client.y, real, torch.zeros((), dtype=torch.long), {})
        models = [{name: v[j] for name, v in down.params.items()} for j in range(self.clusters)]
        return torch.stack([client.problem.loss(client.model(params, client.x), rows) for params in models]).argmin()

    def aggregate(self, server: Models, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Models:
        uploads = [reply.upload for reply in replies]
        models = []
        for j in range(self.clusters):
            old = {name: v[j] for name, v in server.params.items()}
            chosen = [up for up in uploads if int(up.choice) == j]
            models.append(mean(with_policy_of(replies, chosen), "params", weight="n", around=old) if chosen else old)
        return Models(stack(models))

    def personal_params(self, down: Models, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else _select(down.params, self.choose(down, client))

    def reduces_to(self) -> str | None:
        return "With one model this is FedAvg from another start." if self.clusters == 1 else None


def _select(models: Params, j: Tensor) -> Params:
    """Return model ``j`` of a stack."""
    return {name: v.index_select(0, j.reshape(1))[0] for name, v in models.items()}
