"""``--backend auto`` tries vmap on two clients for methods from outside the package."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atoll.config import Config
from atoll.core import Client, Key, Nothing, Params, Round, Traits, payload
from atoll.engine.build import run_experiment
from atoll.engine.setup import Setup, build_setup
from atoll.engine.vmap_trial import find_vmap_problem, largest_gap, two_clients
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.local import State

CLIENTS = {"rows": 300, "clients": 5, "partition": "dirichlet:0.5", "epochs": 1, "batch_size": 16}


@dataclass(frozen=True)
class Plain(FedAvg):
    """FedAvg, as a user could write it."""


@dataclass(frozen=True)
class ReadsValue(FedAvg):
    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        if client.n > 10:
            return super().client_update(down, state, client, r, k)
        return Update(down.params, client.n, {}), state


@dataclass(frozen=True)
class SaysNo(Plain):
    traits = Traits(vmap=False)


def made(method: Any, **options: Any) -> Setup:
    return build_setup(Config(**CLIENTS | options), method=method)


def test_auto_takes_processes_with_a_note_for_a_method_that_vmap_cannot_run() -> None:
    found = made(ReadsValue())

    assert found.config.backend == "processes"
    (note,) = found.notes
    assert note.startswith("--backend auto took processes for ReadsValue: vmap cannot run line ")
    assert " of test_vmap_trial.py (if client.n > 10): vmap: It looks like" in note
    assert note.endswith("Or declare Traits(vmap=False).")


def test_vmap_names_method_and_line_that_it_cannot_run_and_the_remedy() -> None:
    with pytest.raises(AtollError) as caught:
        run_experiment(made(ReadsValue(), backend="vmap"))

    text = str(caught.value)
    assert text.startswith("--backend vmap cannot run ReadsValue: line ")
    assert " of test_vmap_trial.py (if client.n > 10): vmap: It looks like" in text
    assert "Or use --backend loop" in text


@dataclass(frozen=True)
class Mistaken(FedAvg):
    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        raise KeyError("a bug of the user")


def test_other_errors_of_a_method_keep_their_traceback_under_vmap() -> None:
    with pytest.raises(KeyError, match="a bug of the user"):
        run_experiment(made(Mistaken(), backend="vmap"))


@pytest.mark.parametrize(("method", "backend"), [(Plain(), "vmap"), (SaysNo(), "processes"), (FedAvg(), "vmap")])
def test_auto_follows_the_trial_or_the_declaration_without_a_note(method: Any, backend: str) -> None:
    found = made(method)

    assert (found.config.backend, found.notes) == (backend, ())


def test_methods_of_the_package_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.engine.execution.find_vmap_problem", lambda *args: pytest.fail("tried"))

    assert made(FedAvg()).config.backend == "vmap"


def test_two_clients_have_unequal_numbers_of_rows_and_the_rows_of_their_clients() -> None:
    pool = made(FedAvg(), backend="loop").pool
    two = two_clients(FedAvg(), pool)

    # Batches of 32 rows: at most 64 rows for the first client and at most 48 for the second.
    sizes = [min(pool.train.size(0), 64), min(pool.train.size(1), 48)]
    assert [two.train.size(0), two.train.size(1)] == sizes
    assert torch.equal(two.train[1].x, pool.train[1].x[: sizes[1]])


def test_package_method_has_no_vmap_problem() -> None:
    pool = made(FedAvg(), backend="loop").pool

    assert find_vmap_problem(FedAvg(), pool) is None


def params(*values: float) -> Params:
    return {"w": torch.tensor(values)}


def test_largest_gap_is_relative_to_values_above_one() -> None:
    # |4 - 6| / 4 = 0.5 is larger than |0.5 - 0.25| / 1 = 0.25.
    assert largest_gap(State(params(0.5, 4.0)), State(params(0.25, 6.0))) == 0.5
    assert largest_gap(State(params(1.0)), State(params(1.0, 2.0))) == float("inf")


def test_payload_without_tensors_has_no_gap() -> None:
    @payload
    class Empty:
        n: int

    assert largest_gap(Empty(1), Empty(1)) == 0.0
