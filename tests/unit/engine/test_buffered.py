"""Rounds in which the server aggregates after K uploads: order of arrival, staleness, and the synchronous limit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_data import toy_data

from atoll import run
from atoll.core.client import Client
from atoll.core.payloads import Nothing
from atoll.core.prng import Key
from atoll.core.task import Round
from atoll.engine.accounting import Accounting
from atoll.engine.cohort import sample_cohort
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.simulation.clock import Devices
from atoll.storage import audit_log
from atoll.typing import ClientId

pytestmark = pytest.mark.usefixtures("without_report")
QUICK: dict[str, Any] = {"rows": 300, "clients": 5, "rounds": 4, "epochs": 1, "batch_size": 16, "clock": "spread=4"}
SPEEDS = {"0": 1.0, "1": 2.0, "2": 4.0}


def without_seconds(result: Result) -> str:
    own = ("seconds", "staleness")
    return json.dumps([{k: v for k, v in line.items() if k not in own} for line in result.history])


def uploads(folder: Path) -> list[tuple[int, ClientId, int]]:
    """Round, client and staleness of every upload in the audit log."""
    return [(record.round, record.client, record.staleness) for record in audit_log.read(folder / audit_log.NAME)]


@pytest.fixture
def three_devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a run of three clients with equal rows, speeds 1, 2 and 4, and messages that take no time."""
    monkeypatch.setattr(Devices, "speed_of", lambda self, i, seed: SPEEDS[i])
    clock = "communication=fixed,seconds=0"
    return {"data": toy_data(), "clients": 3, "partition": "iid", "clock": clock}


ORDER = [  # Work takes 4, 2 and 1 seconds. Of several arrivals at once, the first client of the run comes first.
    (1, "2", 0),  # second 1
    (2, "1", 1),  # second 2; started at 0 from version 0, and version 1 is there
    (3, "2", 1),  # second 2; started at 1 from version 1
    (4, "2", 0),  # second 3
    (5, "0", 4),  # second 4; started at 0
    (6, "1", 3),  # second 4; started at 2 from version 2
    (7, "2", 2),  # second 4; started at 3 from version 4
]


def test_uploads_arrive_in_the_order_of_hand_computed_times(three_devices: dict[str, Any], tmp_path: Path) -> None:
    result = run("fedavg", **three_devices, rounds=7, schedule="buffered:1", out=tmp_path)

    unit = result.history[0]["clock"]["waiting"]["generic"]
    ends = [line["clock"]["waiting"]["generic"] / unit for line in result.history]
    assert uploads(tmp_path) == ORDER
    assert ends == pytest.approx([1, 2, 2, 3, 4, 4, 4])
    assert [line["staleness"] for line in result.history] == [0, 1, 1, 0, 4, 3, 2]


def test_server_waits_for_two_uploads_where_the_buffer_has_two(three_devices: dict[str, Any], tmp_path: Path) -> None:
    """Seconds 1 and 2: clients 2 and 1. Both start again at 2; client 2 arrives at 3, and 0 and 1 at 4: 0 is first."""
    run("fedavg", **three_devices, rounds=2, schedule="buffered:2", out=tmp_path)

    assert uploads(tmp_path) == [(1, "1", 0), (1, "2", 0), (2, "0", 1), (2, "2", 0)]


@dataclass(frozen=True)
class AddsOne(FedAvg):
    """Trains, which takes simulated time, and sends the received weights plus 1."""

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        self.train(down, client, k)
        return Update({name: v + 1 for name, v in down.params.items()}, client.n, {}), state


def moved_by(result: Result) -> float:
    first = result.pool.task().model.init()
    moves = torch.cat([(v - first[name]).flatten() for name, v in result.server.params.items()])
    assert torch.allclose(moves, moves[0], atol=1e-5)
    return float(moves[0])


def test_fedbuff_adds_updates_with_weights_of_their_staleness(three_devices: dict[str, Any]) -> None:
    """Staleness 0, 1, 1, 0, 4, 3, 2: 1 + 2^-.5 + 2^-.5 + 1 + 5^-.5 + 4^-.5 + 3^-.5 = 4.9388."""
    result = run(AddsOne(), **three_devices, rounds=7, schedule="buffered:1")

    assert moved_by(result) == pytest.approx(4.9388, abs=1e-3)


def test_constant_weight_adds_whole_updates(three_devices: dict[str, Any]) -> None:
    assert moved_by(run(AddsOne(), **three_devices, rounds=7, schedule="buffered:1:constant")) == pytest.approx(7)


def test_fedasync_mixes_the_models_of_clients(three_devices: dict[str, Any]) -> None:
    """alpha = 1/2, constant. From 0: client 2 sends 1, x = 1/2. Client 1 (from 0) sends 1: x = 3/4. Client 2 (from
    1/2) sends 3/2: x = 9/8."""
    result = run(AddsOne(), **three_devices, rounds=3, schedule="asynchronous:0.5:constant")

    assert moved_by(result) == pytest.approx(9 / 8)


# -- the synchronous limit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedproto", "dcpfl", "scd", "fedgh", "fedkd", "fedavgm"])
def test_buffer_of_the_whole_cohort_is_the_synchronous_run(method: str) -> None:
    options = {**QUICK, "rate": 0.6, "drop": "0.2", "backend": "loop"}
    synchronous, buffered = run(method, **options), run(method, **options, schedule="buffered:3")

    assert buffered.summary["digest"] == synchronous.summary["digest"]
    assert without_seconds(buffered) == without_seconds(synchronous)


@pytest.mark.parametrize("backend", ["processes", "vmap"])
def test_backends_give_the_run_of_the_loop(backend: str) -> None:
    options = {**QUICK, "schedule": "buffered:2"}
    loop, other = run("ditto", **options, backend="loop"), run("ditto", **options, backend=backend, workers=2)

    if backend == "processes":
        assert other.summary["digest"] == loop.summary["digest"]
    for name, value in loop.server.params.items():
        assert torch.allclose(other.server.params[name], value, atol=1e-6)


def test_buffered_run_is_another_run_than_the_synchronous_one() -> None:
    assert run(**QUICK).summary["digest"] != run(**QUICK, schedule="buffered:2").summary["digest"]


# -- resume -------------------------------------------------------------------------------------------------------


def test_resumed_run_equals_the_longer_one_and_keeps_versions_in_use(tmp_path: Path) -> None:
    options = {**QUICK, "schedule": "buffered:1", "checkpoint_every": 1, "drop": "0.2"}
    whole = run("ditto", **{**options, "rounds": 9}, out=tmp_path / "whole")
    run("ditto", **options, out=tmp_path / "part")
    checkpoint = tmp_path / "part" / "checkpoints" / "round-000004"
    working = json.loads((checkpoint / "progress.json").read_text())["run_state"]["working"]
    kept = json.loads((checkpoint / "servers.json").read_text())

    resumed = run("ditto", **{**options, "rounds": 9}, out=tmp_path / "part", resume=True)

    assert {int(name) for name in kept if name.isdecimal()} == {start["version"] for start in working.values()}
    assert len(working) == 4  # five clients work, and the upload of one has arrived
    assert resumed.summary["digest"] == whole.summary["digest"]
    assert without_seconds(resumed) == without_seconds(whole)
    assert uploads(tmp_path / "part") == uploads(tmp_path / "whole")


def test_run_interrupted_within_a_round_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third aggregation is interrupted when it has been counted, with other clients at work."""
    options = {**QUICK, "rounds": 6, "schedule": "buffered:2", "checkpoint_every": 99}
    whole = run("ditto", **options, out=tmp_path / "whole")
    count, calls = Accounting.count, list[int]()

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        stamps = count(*args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return stamps

    monkeypatch.setattr(Accounting, "count", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("ditto", **options, out=tmp_path / "part")
    resumed = run("ditto", **options, out=tmp_path / "part", resume=True)

    assert resumed.summary["digest"] == whole.summary["digest"]
    assert without_seconds(resumed) == without_seconds(whole)
    assert uploads(tmp_path / "part") == uploads(tmp_path / "whole")


# -- who takes part -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [(), ("3",), ("0", "5")])
def test_sampled_clients_fill_the_places_that_busy_ones_leave(busy: Sequence[str]) -> None:
    clients = [str(i) for i in range(8)]
    for t in range(5):
        sampled = sample_cohort(clients, 0.5, 0, t, busy)
        assert len(sampled) == 4 - len(busy)
        assert not set(sampled) & set(busy)
        assert sampled == sorted(sampled)


def test_no_client_has_two_uploads_in_one_aggregation(tmp_path: Path) -> None:
    run("fedavg", **{**QUICK, "rounds": 12}, rate=0.6, schedule="buffered:2", out=tmp_path)

    seen = uploads(tmp_path)
    assert len({(done, client) for done, client, _ in seen}) == len(seen) == 24


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("scaffold", {}, "cannot run scaffold: its server keeps the mean of all clients' variates"),
        ("fedmd", {"public": 60}, "cannot run fedmd: clients wait for each other between the exchanges"),
        ("fedavg", {"deadline": 1.0}, "deadline exclude each other"),
        ("fedavg", {"clock": "compute=measured"}, "needs counted operations"),
        ("fedavg", {"rate": 0.2}, "waits for 2 uploads, but only 1 of 5 clients work at a time"),
    ],
)
def test_what_needs_synchronous_rounds_is_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AtollError, match=message):
        run(method, **{**QUICK, **options}, schedule="buffered:2")


def test_methods_whose_staleness_has_no_weight_say_so() -> None:
    notes = run("fedgh", **QUICK, schedule="buffered:2").notes

    assert any("stale ones count in full" in note for note in notes)
