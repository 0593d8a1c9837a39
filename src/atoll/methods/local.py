"""Local. Every client trains alone: the floor that any method has to beat.

client:  w_k <- SGD(w_k; D_k), from where it stopped
server:  nothing
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.client import Client
from ..core.hyperparams import setting
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Traits
from ..typing import ClientId


@payload
class State:
    params: Params = about("w_k, the client's own model")


@dataclass(frozen=True)
class Local(Method[Nothing, State, Nothing, Nothing]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    bias_free_head: bool = setting(False, "the last layer has no bias", "chosen here; true for FedDW's Figure 4")

    traits: ClassVar[Traits] = Traits(family="none")

    def init_server(self, task: Task, k: Key) -> Nothing:
        return Nothing()

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Nothing, to: ClientId, task: Task, r: Round, k: Key) -> Nothing:
        return Nothing()

    def client_update(self, down: Nothing, state: State, client: Client, r: Round, k: Key) -> tuple[Nothing, State]:
        return down, State(self.optim.fit(client.objective(), state.params, client, k))

    def aggregate(self, server: Nothing, replies: Iterable[Reply[Nothing]], task: Task, r: Round, k: Key) -> Nothing:
        return server

    def personal_params(self, down: Nothing, up: Nothing | None, state: State, client: Client) -> Params:
        return state.params

    def bias_free(self) -> bool:
        return self.bias_free_head
