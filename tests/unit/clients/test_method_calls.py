"""Methods whose functions return something else than they declare: one sentence, wherever the run meets it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import adapt, run
from atoll.core.client import Client
from atoll.core.method import Method
from atoll.core.model import Predictor
from atoll.core.payloads import Params, Payload, about, payload
from atoll.core.prng import Key
from atoll.core.task import Reply, Round, Task
from atoll.errors import AtollError
from atoll.typing import ClientId

LATER = 3  # counted from 0: the dry run before a run has two rounds and meets only what goes wrong at once


@payload
class Server:
    v: Tensor = about("a number")


@payload
class Down:
    t: int = about("the round")
    v: Tensor = about("a number")


@payload
class State:
    v: Tensor = about("a number")


@payload
class Up:
    v: Tensor = about("a number")


@payload
class Foo:
    v: Tensor = about("what nobody declares")


@dataclass(frozen=True)
class Numbers(Method[Server, State, Down, Up]):
    """Sends a number around. From round ``since`` on, the function called ``wrong`` returns a Foo."""

    wrong: str = ""
    since: int = LATER

    def either(self, function: str, t: int, right: Any) -> Any:
        return Foo(torch.zeros(())) if function == self.wrong and t >= self.since else right

    def init_server(self, task: Task, k: Key) -> Server:
        made: Server = self.either("init_server", LATER, Server(torch.zeros(())))
        return made

    def init_client(self, client: Client, k: Key) -> State:
        made: State = self.either("init_client", LATER, State(torch.zeros(())))
        return made

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Down:
        made: Down = self.either("broadcast", r.t, Down(r.t, server.v))
        return made

    def client_update(self, down: Down, state: State, client: Client, r: Round, k: Key) -> tuple[Up, State]:
        return Up(down.v + 1), self.either("client_update", down.t, State(state.v + 1))

    def after_upload(self, down: Down, up: Up, state: State, client: Client, r: Round, k: Key) -> State:
        made: State = self.either("after_upload", down.t, state)
        return made

    def aggregate(self, server: Server, replies: Iterable[Reply[Up]], task: Task, r: Round, k: Key) -> Server:
        v = torch.stack([reply.upload.v for reply in replies]).mean()
        made: Server = self.either("aggregate", r.t, Server(v))
        return made

    def personal_params(self, down: Payload, up: Payload | None, state: Payload, client: Client) -> Params:
        return {}

    def personal_predictor(self, down: Down, up: Up | None, state: State, client: Client) -> Predictor:
        return lambda x: torch.zeros(len(x), client.num_classes)


@payload
class PerClient:
    v: Tensor = about("a number")


@dataclass(frozen=True)
class WithServerSide(Numbers):
    """Return numbers with a server-side state for each client."""

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> PerClient:
        made: PerClient = self.either("init_per_client", LATER, PerClient(torch.zeros(())))
        return made

    def broadcast_per_client(
        self, server: Server, per_client: PerClient, to: ClientId, task: Task, r: Round, k: Key
    ) -> Down:
        made: Down = self.either("broadcast_per_client", r.t, Down(r.t, server.v))
        return made

    def serve_client(
        self, server: Server, per_client: PerClient, reply: Reply[Up], task: Task, r: Round, k: Key
    ) -> tuple[Up, PerClient]:
        return reply.upload, self.either("serve_client", r.t, per_client)


def said(method: Any, **options: Any) -> str:
    with pytest.raises(AtollError) as caught:
        run(method, **{"clients": 3, "rounds": 5, "rows": 200, "partition": "iid"} | options)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("since", [0, LATER])
@pytest.mark.parametrize(
    ("kind", "function", "declared"),
    [
        (Numbers, "init_server", "init_server() declares a Server"),
        (Numbers, "init_client", "client_update() declares that a client keeps a State"),
        (Numbers, "broadcast", "client_update() declares that it receives a Down"),
        (Numbers, "client_update", "client_update() declares that a client keeps a State"),
        (Numbers, "after_upload", "client_update() declares that a client keeps a State"),
        (Numbers, "aggregate", "init_server() declares a Server"),
        (WithServerSide, "init_per_client", "init_per_client() declares a PerClient"),
        (WithServerSide, "broadcast_per_client", "client_update() declares that it receives a Down"),
        (WithServerSide, "serve_client", "init_per_client() declares a PerClient"),
    ],
)
def test_value_of_undeclared_class_ends_the_run(
    kind: type[Numbers], function: str, declared: str, since: int, backend: str
) -> None:
    method = kind(function, since)

    assert said(method, backend=backend) == f"{kind.__name__}.{function} returned a Foo, but {declared}."


@pytest.mark.parametrize("kind", [Numbers, WithServerSide])
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_values_of_declared_classes_pass(kind: type[Numbers], backend: str) -> None:
    result = run(kind(), clients=3, rounds=5, rows=200, partition="iid", backend=backend)

    assert float(result.server.v) == 5


@dataclass(frozen=True)
class Single(Numbers):
    def client_update(self, down: Down, state: State, client: Client, r: Round, k: Key) -> tuple[Up, State]:
        return Up(down.v) if down.t >= self.since else (Up(down.v), state)  # type: ignore[return-value]


@dataclass(frozen=True)
class Triple(Numbers):
    def client_update(self, down: Down, state: State, client: Client, r: Round, k: Key) -> tuple[Up, State]:
        return Up(down.v), state, down.v  # type: ignore[return-value]


@dataclass(frozen=True)
class Forgetful(Numbers):
    def aggregate(self, server: Server, replies: Iterable[Reply[Up]], task: Task, r: Round, k: Key) -> Server:
        list(replies)
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            Single(since=0),
            "Single.client_update returned a Up, but must return two values: the upload and the client's state.",
        ),
        (
            Single(),
            "Single.client_update returned a Up, but must return two values: the upload and the client's state.",
        ),
        (
            Triple(),
            "Triple.client_update returned 3 values, but must return two values: the upload and the client's state.",
        ),
        (Forgetful(), "Forgetful.aggregate returned None, but init_server() declares a Server."),
    ],
)
def test_wrong_number_of_returned_values_ends_the_run(method: Numbers, sentence: str, backend: str) -> None:
    assert said(method, backend=backend) == sentence


@dataclass(frozen=True)
class Adapting(Numbers):
    """With a rule of its own for clients that come after the run."""

    def adapt(self, server: Server, client: Client, k: Key) -> State:
        made: State = self.either("adapt", LATER, State(server.v))
        return made


@pytest.mark.parametrize("function", ["init_client", "client_update", "after_upload"])
def test_new_client_values_are_checked_against_declared_classes(function: str) -> None:
    result = run(Numbers(), clients=4, rounds=LATER, rows=200, partition="iid", new_clients=1)
    result = replace(result, setup=replace(result.setup, method=Numbers(function)))

    with pytest.raises(AtollError, match=rf"Numbers\.{function} returned a Foo"):
        adapt(result)


def test_adapt_must_return_declared_state_class() -> None:
    result = run(Adapting("adapt"), clients=4, rounds=1, rows=200, partition="iid", new_clients=1)

    with pytest.raises(
        AtollError, match=r"Adapting\.adapt returned a Foo, but client_update\(\) declares that a client keeps"
    ):
        adapt(result)
