"""``atoll check``: each law is broken by a method that a user could write by mistake."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from atoll.aggregation import mean
from atoll.analysis.laws import LAWS, Finding, Trial, check_method
from atoll.analysis.laws.check import BROKEN, HOLDS, NOT_APPLICABLE, check_law
from atoll.analysis.laws.trial import SMALL
from atoll.config import Config
from atoll.core import Client, Key, Nothing, Params, Reads, Reply, Role, Round, Task, Traits, about, payload
from atoll.engine.setup import build_setup
from atoll.methods.fedavg import Averaging, FedAvg, Global, Update
from atoll.methods.local import State

BY_NAME = {law.name: law for law in LAWS}


def trial(method: Any) -> Trial:
    return Trial(lambda **changes: build_setup(Config(**{**SMALL, **changes}), method=method))


def verdict(law: str, method: Any) -> Finding:
    return check_law(BY_NAME[law], trial(method))


@dataclass(frozen=True)
class Altered(FedAvg):
    """FedAvg whose upload is altered by one mistake."""

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        up, state = super().client_update(down, state, client, r, k)
        return replace(up, params=self.alter(up.params, down, client)), state

    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return params


def scaled(params: Params, factor: Any) -> Params:
    return {name: v * factor for name, v in params.items()}


class ChangesDownload(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        for v in down.params.values():
            v += 1
        return params


class ChangesRows(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        client.x.mul_(2)
        return params


class UsesGlobalGenerator(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return scaled(params, 1 + torch.rand(()))


class CountsCalls(Altered):
    calls: ClassVar[Any] = count()

    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return scaled(params, 1 + next(self.calls) / 1000)


class ReadsValue(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return scaled(params, 1 + 1 / float(client.n.item()))


class ReadsPadding(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return scaled(params, 1 + client.x.mean())


class Diverges(Altered):
    def alter(self, params: Params, down: Global, client: Client) -> Params:
        return scaled(params, float("nan"))


@pytest.mark.parametrize(
    ("law", "method", "words"),
    [
        ("A run finishes", Diverges(), "ended as 'diverged'"),
        ("Functions leave their inputs unchanged", ChangesDownload(), "client_update() changes its server in place"),
        ("Functions leave their inputs unchanged", ChangesRows(), "samples are changed in place"),
        ("Random numbers come from keys", UsesGlobalGenerator(), "global generator"),
        ("The order of clients changes no bit", CountsCalls(), "order of clients changes numbers"),
        ("Worker processes give the same bits", CountsCalls(), "other bits than the loop"),
        ("States on disk give the same bits", CountsCalls(), "States on disk"),
        ("A resumed run gives the same bits", CountsCalls(), "another digest"),
        ("vmap gives the same numbers", ReadsValue(), "call neither .item() nor .numpy()"),
        ("vmap gives the same numbers", ReadsPadding(), "padding must count nothing"),
    ],
)
def test_law_is_broken_by_a_method_with_the_mistake(law: str, method: Any, words: str) -> None:
    found = verdict(law, method)

    assert found.verdict == BROKEN
    assert words in found.detail


@pytest.mark.parametrize("law", [law.name for law in LAWS if law.name != "Heterogeneous models run"])
def test_law_holds_for_fedavg(law: str) -> None:
    assert verdict(law, FedAvg()).verdict == HOLDS


@payload
class Unmarked:
    params: Params = about("the model")
    n: Tensor = about("number of rows", role=Role.WEIGHT)


@dataclass(frozen=True)
class SendsWithoutRole(Averaging[State]):
    traits: ClassVar[Traits] = Traits(server_reads=Reads.SUMS)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(  # type: ignore[override]
        self, down: Global, state: State, client: Client, r: Round, k: Key
    ) -> tuple[Unmarked, State]:
        return Unmarked(down.params, client.n), state

    def aggregate(  # type: ignore[override]
        self, server: Global, replies: Iterable[Reply[Unmarked]], task: Task, r: Round, k: Key
    ) -> Global:
        return Global(mean(replies, "params", weight="n"), {})

    def personal_params(self, down: Global, up: Any, state: State, client: Client) -> Params:
        return down.params


def test_upload_field_without_role_is_named() -> None:
    found = verdict("Fields of uploads have roles", SendsWithoutRole())

    assert found.verdict == BROKEN
    assert found.detail.startswith("Unmarked.params: no role.")


def test_refused_option_is_not_applicable_and_lists_no_other_methods() -> None:
    found = verdict("A run with --dp 8", SendsWithoutRole())

    assert found.verdict == NOT_APPLICABLE
    assert "take" not in found.detail


def test_check_ends_with_a_run_that_does_not_finish() -> None:
    assert [finding.verdict for finding in check_method(trial(Diverges()))] == [BROKEN]


def test_heterogeneous_models_are_refused_by_a_method_that_declares_one_architecture() -> None:
    found = verdict("Heterogeneous models run", FedAvg())

    assert found.verdict == NOT_APPLICABLE
    assert "one architecture" in found.detail
