"""When a run ends before its last round: by validation scores, and never by test rows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from atoll import run
from atoll.clients.pool import ClientRows
from atoll.config import Config
from atoll.engine.build import run_experiment
from atoll.engine.cohort import Cohorts
from atoll.engine.ending import Ending
from atoll.engine.round_options import check_stopping
from atoll.engine.run_state import RunState
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.simulation.faults import Faults
from atoll.storage.metrics import RoundMetrics

pytestmark = pytest.mark.usefixtures("without_report")
Atoll = Callable[..., Any]
QUICK: dict[str, Any] = {"rows": 400, "clients": 4, "rounds": 12, "epochs": 1, "lr": 0.05}


def line(done: int, val: float) -> RoundMetrics:
    return cast(RoundMetrics, {"round": done, "personal": {"post": {"val": val}}})


def status_after(scores: list[float], eval_every: int = 1, **options: Any) -> str:
    """The status of a run of 20 rounds with these validation scores in rounds 1, 2, ..."""
    config = Config(rounds=20, eval_every=eval_every, **options)
    cohorts = Cohorts(("a", "b"), 1.0, 0, Faults(("a", "b"), 0), config.rounds, eval_every)
    run_state = RunState(lines=[line(done, val) for done, val in enumerate(scores, start=1)])
    Ending(config, cast(Any, None), cohorts).after_evaluation(run_state, len(scores))
    return run_state.status


@pytest.mark.parametrize(
    ("scores", "status"),
    [
        ([0.5, 0.6], "running"),
        ([0.6, 0.5], "running"),  # one evaluation without a better score
        ([0.6, 0.5, 0.6], "stopped"),  # an equal score is not better: two evaluations since the best
        ([0.6, 0.5, 0.7], "running"),
        ([0.6, 0.5, 0.7, 0.1, 0.2], "stopped"),
    ],
)
def test_patience_counts_evaluations_since_the_best_validation_score(scores: list[float], status: str) -> None:
    assert status_after(scores, patience=2) == status


def test_until_ends_the_run_at_the_score() -> None:
    assert status_after([0.5, 0.89], until=0.9) == "running"
    assert status_after([0.5, 0.9], until=0.9) == "stopped"


def test_last_round_is_finished_and_not_stopped() -> None:
    assert status_after([0.5] * 20, patience=2) == "running"


def test_lines_that_only_an_earlier_end_caused_do_not_count() -> None:
    """Every second round is evaluated, so that of rounds 1 to 5 only 2 and 4 count: one evaluation since the best."""
    assert status_after([0.5, 0.6, 0.1, 0.2, 0.1], eval_every=2, patience=2) == "running"
    assert status_after([0.5, 0.6, 0.1, 0.2, 0.1, 0.3], eval_every=2, patience=2) == "stopped"


def test_stopped_run_reports_status_and_reason() -> None:
    result = run(**{**QUICK, "rounds": 30}, until=0.5)

    reached = [entry["round"] for entry in result.history if entry["personal"]["post"]["val"] >= 0.5]
    assert result.summary["status"] == "stopped"
    assert reached == [result.summary["rounds"]]
    assert any("(--until 0.5)" in note for note in result.notes)


def test_test_labels_do_not_change_when_a_run_stops() -> None:
    made = build_setup(Config(**QUICK, patience=1))
    test = made.pool.test
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(test.all.y.numpy()))
    sizes = [test.size(at) for at in range(len(made.pool.ids))]
    other = replace(made, pool=replace(made.pool, test=ClientRows(test.all.x, shuffled, sizes)))

    honest, swapped = run_experiment(made), run_experiment(other)

    assert honest.summary["personal"]["final"] != swapped.summary["personal"]["final"]
    assert honest.summary["status"] == swapped.summary["status"] == "stopped"
    assert honest.summary["rounds"] == swapped.summary["rounds"] < QUICK["rounds"]
    assert honest.summary["digest"] == swapped.summary["digest"]


def test_resuming_with_more_patience_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    short = run("local", **QUICK, patience=1, out=tmp_path)
    again = run("local", **QUICK, patience=1, out=tmp_path, resume=True)
    longer = run("local", **QUICK, out=tmp_path, resume=True)

    assert short.summary["status"] == again.summary["status"] == "stopped"
    assert again.summary["rounds"] == short.summary["rounds"] < QUICK["rounds"]
    assert longer.summary["status"] == "finished"
    assert longer.summary["digest"] == run("local", **QUICK).summary["digest"]


def test_command_goes_on_with_a_stopped_run_that_gets_more_patience(tmp_path: Path, atoll: Atoll) -> None:
    words = ["--rows", "400", "--clients", "4", "--rounds", "12", "--epochs", "1", "--lr", "0.05"]
    atoll("run", "local", *words, "--patience", "1", "--out", str(tmp_path / "run"))
    (tmp_path / "run" / "report.html").touch()  # as a run leaves it, where reports are not switched off

    atoll("run", "--resume", str(tmp_path / "run"), "--patience", "12")

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 12)


def test_without_validation_rows_stopping_by_scores_is_refused() -> None:
    made = build_setup(Config(**QUICK))
    val = made.pool.val
    empty = replace(made.pool, val=ClientRows(val.all.x[:0], val.all.y[:0], [0] * len(made.pool.ids)))

    check_stopping(Config(), empty)
    with pytest.raises(AtollError, match="--patience ends a run by scores on validation samples, and no client has"):
        check_stopping(Config(patience=3), empty)
    with pytest.raises(AtollError, match="--until ends a run"):
        check_stopping(Config(until=0.9), empty)
