"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1. https://arxiv.org/abs/1602.05629

client:  w_k = SGD(w_t; D_k)
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k, over the clients of the round
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..core.client import Client
from ..core.losses import Term
from ..core.method import Method, StateT
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key
from ..core.regularisers import Regularisers
from ..core.replies import Reports, with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId


@payload
class Global:  # the server's state, and what it sends
    params: Params = about("w_t, the global model")
    extra: Params = about("what the regularisers ask for")


@payload
class Update:
    params: Params = about("w_k, the model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    extra: Params = about("what the regularisers report")  # Each regulariser declares the roles of its reports.


@dataclass(frozen=True)
class Averaging(Method[Global, StateT, Global, Update]):
    """Base of FedAvg and related methods: all clients train one global model, and the server averages it."""

    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    regularisers: Regularisers = field(default=Regularisers(), metadata={"about": "further terms of the local loss"})

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}), server_reads=Reads.SUMS, guards=("params",)
    )

    def terms(self) -> Regularisers:
        """Return the regularisers that apply: those of the user and those of the method itself."""
        return self.regularisers

    def bias_free(self) -> bool:
        return self.terms().bias_free_head

    def init_server(self, task: Task, k: Key) -> Global:
        return Global(task.model.init(), self.terms().start(task))

    def broadcast(self, server: Global, to: ClientId, task: Task, r: Round, k: Key) -> Global:
        if (
            type(server) is Global and not self.terms()
        ):  # The state has no further fields, and one message for all clients costs less.
            return server
        return Global(server.params, self.terms().send(server.extra))

    def bind_terms(self, down: Global, client: Client) -> list[Term]:
        return self.terms().bind(down.extra, down.params, client)

    def train(self, down: Global, client: Client, k: Key, *own: Term) -> Update:
        """Train the global model locally, with the regularisers and the method's ``own`` terms."""
        params = self.optim.fit(client.objective(*own), down.params, client, k)
        return Update(params, client.n, self.terms().report(params, client))

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        reports = Reports((), like=replies)

        def uploads() -> Iterable[Update]:
            for reply in replies:
                reports.append(reply.upload.extra)
                yield reply.upload

        params = mean(with_policy_of(replies, uploads()), "params", weight="n")
        return Global(params, self.terms().merge(server.extra, reports))

    def generic_predictor(self, server: Global, task: Task) -> Predictor:
        return lambda x: task.model(server.params, x)


@dataclass(frozen=True)
class FedAvg(Averaging[Nothing]):
    traits: ClassVar[Traits] = Averaging.traits._replace(private_training=True)

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        return self.train(down, client, k), state

    def personal_params(self, down: Global, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.params
