"""A new method in one file: clients share only the last layer and keep everything below it (as in LG-FedAvg).

python examples/new_method.py
atoll run examples/new_method.py --models mlp
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

import atoll
from atoll.aggregation import mean
from atoll.core import (
    SGD,
    Client,
    ClientId,
    Key,
    Method,
    Need,
    Optimiser,
    Params,
    Reads,
    Reply,
    Role,
    Round,
    Task,
    Traits,
    about,
    part,
    payload,
)


@payload
class Head:  # the server's state, and what it sends
    params: Params = about("the shared last layer")


@payload
class State:
    params: Params = about("the client's whole model")


@payload
class Update:
    params: Params = about("the last layer after local training", role=Role.MODEL)
    n: Tensor = about("number of training samples", role=Role.WEIGHT)


@dataclass(frozen=True)
class SharedHead(Method[Head, State, Head, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})

    traits = Traits(needs=frozenset({Need.SAME_WIDTH}), server_reads=Reads.SUMS, guards=("params",))

    def init_server(self, task: Task, k: Key) -> Head:
        return Head(part(task.model.init(), "head"))

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Head, to: ClientId, task: Task, r: Round, k: Key) -> Head:
        return server

    def client_update(self, down: Head, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        params = self.optim.fit(client.objective(), state.params | down.params, client, k)
        return Update(part(params, "head"), client.n), State(params)

    def aggregate(self, server: Head, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Head:
        return Head(mean(replies, "params", weight="n"))

    def personal_params(self, down: Head, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else state.params | down.params


if __name__ == "__main__":
    federation = {"data": "digits", "models": ["mlp", "mlp:hidden=32"], "width": 24, "partition": "dirichlet:0.3"}
    for method in ("local", SharedHead()):
        print(atoll.run(method, **federation, rounds=10))
