"""One client's part of an exchange, and the stand-in of the validator, which plays exchanges in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from support.small_runs import setup
from torch import Tensor

from atoll.clients.participation import take_part
from atoll.clients.validation.validator import Validator
from atoll.core.client import Client
from atoll.core.exchange import Exchange
from atoll.core.method import Method
from atoll.core.model import Predictor
from atoll.core.payloads import Params, Payload, about, payload
from atoll.core.prng import Key, key
from atoll.core.task import Reply, Round, Task
from atoll.errors import AtollError
from atoll.typing import ClientId


@payload
class Message:
    exchange: int = about("exchange of the round")


@payload
class Kept:
    next_exchange: int = about("the exchange that the client waits for")


@payload
class Answer:
    v: Tensor = about("one number for each exchange so far")


@dataclass(frozen=True)
class InOrder(Method[Message, Kept, Message, Answer]):
    """Refuses the message of an exchange if the client has not played the exchange before it."""

    broken: bool = False

    def exchanges(self) -> Sequence[Exchange]:
        return (Exchange(self.broadcast, self.client_update, self.aggregate),) * 3

    def init_server(self, task: Task, k: Key) -> Message:
        return Message(0)

    def init_client(self, client: Client, k: Key) -> Kept:
        return Kept(0)

    def broadcast(self, server: Message, to: ClientId, task: Task, r: Round, k: Key) -> Message:
        return Message(r.exchange)

    def client_update(self, down: Message, state: Kept, client: Client, r: Round, k: Key) -> tuple[Answer, Kept]:
        if self.broken:
            raise ValueError("no rows of class 3")
        if down.exchange != state.next_exchange:
            raise ValueError(f"exchange {down.exchange} came where {state.next_exchange} was due")
        return Answer(torch.zeros(down.exchange + 1)), Kept((down.exchange + 1) % 3)

    def aggregate(self, server: Message, replies: Iterable[Reply[Answer]], task: Task, r: Round, k: Key) -> Message:
        return server

    def personal_params(self, down: Payload, up: Payload | None, state: Payload, client: Client) -> Params:
        return {}

    def personal_predictor(self, down: Message, up: Answer | None, state: Kept, client: Client) -> Predictor:
        return lambda x: torch.zeros(len(x), client.num_classes)


def test_upload_is_available_before_personal_training() -> None:
    calls = list[str]()

    @dataclass(frozen=True)
    class InTwoSteps(InOrder):
        def client_update(self, down: Message, state: Kept, client: Client, r: Round, k: Key) -> tuple[Answer, Kept]:
            calls.append("client_update")
            return super().client_update(down, state, client, r, k)

        def after_upload(self, down: Message, up: Answer, state: Kept, client: Client, r: Round, k: Key) -> Kept:
            calls.append("after_upload")
            return Kept(state.next_exchange + 10)

    pool = setup("fedavg").pool
    part = take_part(InTwoSteps(), Round(0), Message(0), Kept(0), pool.client(pool.ids[0]), key(0))

    assert calls == ["client_update"]
    assert part.finish().next_exchange == 11
    assert calls == ["client_update", "after_upload"]


def test_state_is_ready_for_methods_without_after_upload() -> None:
    pool = setup("fedavg").pool
    part = take_part(InOrder(), Round(0), Message(0), Kept(0), pool.client(pool.ids[0]), key(0))

    assert part.finish().next_exchange == 1


def test_state_of_another_class_is_refused() -> None:
    @dataclass(frozen=True)
    class Mistaken(InOrder):
        def client_update(self, down: Message, state: Kept, client: Client, r: Round, k: Key) -> tuple[Answer, Kept]:
            return Answer(torch.zeros(1)), Message(0)  # type: ignore[return-value]

    pool = setup("fedavg").pool
    with pytest.raises(
        AtollError, match=r"Mistaken.client_update returned a Message, but client_update\(\) declares .* a Kept"
    ):
        take_part(Mistaken(), Round(0), Message(0), Kept(0), pool.client(pool.ids[0]), key(0))


@pytest.mark.parametrize("exchange", [0, 1, 2])
def test_stand_in_has_run_the_earlier_exchanges_of_a_round(exchange: int) -> None:
    pool = setup("fedavg").pool
    expected = Validator(InOrder(), pool, 0).expected(pool.ids[0], Message(exchange), exchange)

    assert {name: leaf.shape for name, leaf in expected.form.items()} == {"v": (exchange + 1,)}


def test_error_in_stand_in_names_the_dry_run() -> None:
    pool = setup("fedavg").pool
    sentence = (
        "While working out what InOrder uploads from a dry run on 20 blank samples: ValueError: no rows of class 3"
    )
    with pytest.raises(AtollError, match=sentence):
        Validator(replace(InOrder(), broken=True), pool, 0).expected(pool.ids[0], Message(0))
