"""Average one part of a model, body or head, and keep the other part on the client."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch
from ..core.client import Client
from ..core.losses import Term
from ..core.method import Method, StateT
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import part
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId


@payload
class Shared:  # the server's state, and what it sends
    params: Params = about("the part of the model that all share, as averaged last")


@payload
class Update:
    params: Params = about("the same part after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


@payload
class Kept:
    params: Params = about("the part of the model that stays at home")


@dataclass(frozen=True)
class Sharing(Method[Shared, StateT, Shared, Update]):
    """Base of methods whose server averages one part of all models, running statistics included."""

    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})

    traits: ClassVar[Traits] = Traits(
        family="split model",
        needs=frozenset({Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}),
        server_reads=Reads.SUMS,
        guards=("params",),
    )
    shared: ClassVar[str] = "body"

    def init_server(self, task: Task, k: Key) -> Shared:
        return Shared(part(task.model.init(), self.shared))

    def broadcast(self, server: Shared, to: ClientId, task: Task, r: Round, k: Key) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Shared:
        return Shared(mean(replies, "params", weight="n"))


@dataclass(frozen=True)
class Splitting(Sharing[Kept]):
    """Base of methods whose clients keep the other part and train both together."""

    traits: ClassVar[Traits] = Sharing.traits

    def init_client(self, client: Client, k: Key) -> Kept:
        return self._private_part(client.model.init())

    def client_update(self, down: Shared, state: Kept, client: Client, r: Round, k: Key) -> tuple[Update, Kept]:
        params = self.optim.fit(client.objective(), self.personal_params(down, None, state, client), client, k)
        return Update(part(params, self.shared), client.n), self._private_part(params)

    def personal_params(self, down: Shared, up: Update | None, state: Kept, client: Client) -> Params:
        return join_parts(up.params if up else down.params, state.params)

    def _private_part(self, params: Params) -> Kept:
        return Kept(part(params, "head" if self.shared == "body" else "body"))


def join_parts(one: Params, other: Params) -> Params:
    """Join body and head in the order of a model: sums over all weights depend on the order in their last bits."""
    both = one | other
    return part(both, "body") | part(both, "head")


def fit_body(optim: Optimiser, body: Params, head: Params, client: Client, k: Key, *terms: Term) -> Params:
    """Train the body under a fixed head, with further terms of the loss."""
    joint = client.objective(*terms)

    def loss(params: Params, b: Batch) -> Tensor:
        return joint(params | head, b)

    return optim.fit(loss, body, client, k)


def fit_head(optim: Optimiser, body: Params, head: Params, client: Client, k: Key) -> Params:
    """Train the head on a fixed body in evaluation mode, so that the body's running statistics are fixed too."""

    def loss(params: Params, b: Batch) -> Tensor:
        return client.problem.loss(client.model.classify(params, client.model.features(body, b.x)), b)

    return optim.fit(loss, head, client, k)
