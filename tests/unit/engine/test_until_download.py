"""Personal training that lasts until the next download arrives."""

from pathlib import Path
from typing import Any

import pytest

from atoll import run
from atoll.core.payloads import equal
from atoll.errors import AtollError
from atoll.simulation.timing import RoundTimer
from atoll.storage import audit_log

pytestmark = pytest.mark.usefixtures("without_report")
# Slow devices: only a few batches fit while the upload and the download are under way.
SLOW: dict[str, Any] = {
    "rows": 300, "clients": 4, "rounds": 3, "epochs": 1, "batch_size": 16, "wait_free": True, "backend": "loop",
    "clock": "speed=2e6,spread=2",
}  # fmt: skip


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The budgets of all rounds, as they are computed."""
    seen: list[dict[str, int]] = []
    real = RoundTimer.budgets

    def watched(*args: Any) -> dict[str, int]:
        seen.append(real(*args))
        return seen[-1]

    monkeypatch.setattr(RoundTimer, "budgets", watched)
    return seen


@pytest.mark.parametrize("method", ["scd", "ditto", "fedrod"])
def test_budget_bounds_personal_training_and_leaves_the_server_alone(
    method: str, budgets: list[dict[str, int]]
) -> None:
    plain, bounded = run(method, **SLOW), run(method, **SLOW, until_download=True)

    assert len(budgets) == 3
    assert len(set(budgets[0].values())) > 1
    assert plain.summary["digest"] != bounded.summary["digest"]
    if method != "scd":  # The global models of Ditto and FedRoD do not depend on personal ones.
        assert equal(plain.server, bounded.server)


def test_budget_of_the_methods_own_batches_is_the_plain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch of batches of the size that all training of a client has."""
    plain = run("ditto", **SLOW)
    size = plain.setup.method.personal_optim.batch_size
    batches = {i: -(-len(plain.pool.client(i).y) // size) for i in plain.pool.ids}
    monkeypatch.setattr(RoundTimer, "budgets", lambda *args: batches)

    bounded = run("ditto", **SLOW, until_download=True)

    assert bounded.summary["digest"] == plain.summary["digest"]


def test_nobody_delays_a_round_by_personal_training() -> None:
    """Downloads are made when the server has aggregated, and no client is still at work when its download arrives."""
    plain, bounded = run("ditto", **SLOW), run("ditto", **SLOW, until_download=True)

    ends = [[line["clock"]["wait_free"]["generic"] for line in result.history] for result in (plain, bounded)]
    assert ends[1][0] == ends[0][0]
    assert all(late <= early for late, early in zip(ends[1], ends[0], strict=True))


@pytest.mark.parametrize("schedule", ["synchronous", "buffered:2"])
def test_resumed_run_equals_the_longer_one(schedule: str, tmp_path: Path) -> None:
    options = {**SLOW, "until_download": True, "schedule": schedule, "checkpoint_every": 1, "drop": "0.2"}
    whole = run("ditto", **{**options, "rounds": 5}, out=tmp_path / "whole")
    run("ditto", **options, out=tmp_path / "part")

    resumed = run("ditto", **{**options, "rounds": 5}, out=tmp_path / "part", resume=True)

    assert resumed.summary["digest"] == whole.summary["digest"]
    logs = [list(audit_log.read(tmp_path / name / audit_log.NAME)) for name in ("part", "whole")]
    assert logs[0] == logs[1]


def test_worker_processes_give_the_run_of_the_loop() -> None:
    options = {**SLOW, "until_download": True}
    loop, processes = run("ditto", **options), run("ditto", **{**options, "backend": "processes"}, workers=2)

    assert loop.summary["digest"] == processes.summary["digest"]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("ditto", {"wait_free": False}, "Add wait_free"),
        ("perfedavg", {}, "cannot bound the personal training of perfedavg.* take one of: ditto, fedrod, scd"),
        ("ditto", {"backend": "vmap"}, "Use backend='processes' or loop"),
        ("ditto", {"clock": "communication=equal_to_personal"}, "and communication=equal_to_personal exclude"),
        ("ditto", {"deadline": 1.0}, "until_download and deadline exclude each other"),
        ("ditto", {"topology": "ring"}, "until_download and topology exclude each other"),
    ],
)
def test_where_no_budget_is_known_the_option_is_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AtollError, match=message):
        run(method, **{**SLOW, **options}, until_download=True)
