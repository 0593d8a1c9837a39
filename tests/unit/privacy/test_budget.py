"""The privacy budget of a run: recorded before a release, kept after a crash, never exceeded."""

import json
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from conftest import Atoll
from support.small_runs import setup

from atoll.engine.build import run_experiment
from atoll.privacy.budget import Budget, Journal
from atoll.privacy.policy import Privacy
from atoll.storage.run_dir import RunDir

QUICK = ["--rows", 300, "--clients", 3, "--epochs", 1, "--backend", "loop", "--eval-every", 2, "--quiet"]


def test_summary_records_scope_and_spent_budget(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp", "4", "--out", "real")
    found = json.loads(Path("real/summary.json").read_text())["privacy"]
    assert found["dp"]["dp_scope"].startswith("client level")
    assert found["dp"]["spent"] == pytest.approx(4, abs=1e-3)
    assert "cannot be repeated" in found["dp"]["noise"]
    lines = [json.loads(line) for line in Path("real/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["privacy"]["epsilon"] == found["dp"]["spent"]
    atoll("run", "dcpfl", *QUICK, "--rounds", 2, "--dp", "4", "--dp-seed", 1, "--out", "seeded")
    found = json.loads(Path("seeded/summary.json").read_text())["privacy"]
    assert found["dp"]["dp_scope"].startswith("release, extractor fixed")
    assert found["dp"]["noise"] == "not private: seeded noise"
    assert found["statement"][0].startswith("not private: seeded noise")


def test_real_noise_differs_and_seeded_noise_repeats() -> None:
    real = [run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8")).summary["digest"] for _ in range(2)]
    assert real[0] != real[1]
    fixed = [
        run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8", dp_seed=1)).summary["digest"] for _ in range(2)
    ]
    assert fixed[0] == fixed[1]
    split = run_experiment(setup("fedavg", rounds=1, eval_every=1, dp="8", dp_seed=1, backend="processes", workers=2))
    assert split.summary["digest"] == fixed[0]


def test_a_run_ends_before_its_budget_is_exceeded(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    """A budget for 3 rounds lasts for 3 of 5; resuming changes nothing, and neither does asking for more rounds."""
    result = atoll("run", "fedavg", *QUICK, "--rounds", 5, "--dp-rounds", 3, "--dp", "4", "--out", "run")
    assert "The privacy budget is spent" in result.stderr
    for _ in range(2):
        summary = json.loads(Path("run/summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("exhausted", 3)
        assert summary["privacy"]["dp"]["spent"] <= 4 + 1e-9
        assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["round"] == 3
        atoll("run", "--resume", "run", "--rounds", 9, "--quiet")


def test_interrupted_round_spends_budget(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    """The journal has a line for a round of which no checkpoint knows; the half line after it was never acted on."""
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp-rounds", 4, "--dp", "4", "--out", "run")
    with Path("run/privacy.jsonl").open("a") as f:
        f.write('{"releases": 1, "round": 3, "epsilon": 3.4}\n{"relea')
    atoll("run", "--resume", "run", "--rounds", 4, "--quiet")
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("exhausted", 3)
    assert summary["privacy"]["dp"]["releases"] == 4
    assert len(Path("run/privacy.jsonl").read_text().splitlines()) == 4


def test_releases_survive_loss_of_journal(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 2, "--dp-rounds", 2, "--dp", "4", "--out", "run")
    Path("run/privacy.jsonl").unlink()
    atoll("run", "--resume", "run", "--rounds", 3, "--quiet")
    assert json.loads(Path("run/summary.json").read_text())["rounds"] == 2


def test_run_with_a_damaged_journal_is_refused(
    tmp_path: Path, atoll: Atoll, refused: Callable[..., str], without_report: None
) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 1, "--dp-rounds", 2, "--dp", "4", "--out", "run")
    Path("run/privacy.jsonl").write_text('{"releases": -5}\n')
    assert "is damaged" in refused("run", "--resume", "run", "--rounds", 2)
    atoll("run", "fedavg", *QUICK, "--rounds", 1, "--dp", "4", "--out", "run", "--force")


def test_release_is_recorded_before_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first client's upload is made, the journal already has the line of its round."""
    plain, seen = setup("fedavg", rounds=2, eval_every=2, dp="8"), []
    real = Privacy.upload_filter

    def watched(self: Privacy, *given: Any) -> Any:
        seen.append((given[0].round.t, Journal(tmp_path).made()))
        return real(self, *given)

    monkeypatch.setattr(Privacy, "upload_filter", watched)
    with RunDir(tmp_path) as run_dir:
        run_experiment(plain, run_dir)
    assert seen == [(0, 1)] * 5 + [(1, 2)] * 5


@pytest.mark.promise("Privacy", "A killed run pays for the round that it repeats.")
def test_spent_budget_survives_kill_9(tmp_path: Path) -> None:
    """Killed three times at some moment and resumed: epsilon never decreases, and never exceeds the budget."""
    plain = setup("fedavg", clients=3, rounds=40, eval_every=40, dp="8")

    def conducted() -> None:
        with RunDir(tmp_path) as run_dir:
            run_dir.start(plain.config, resume=True, force=False)
            run_experiment(plain, run_dir)

    spent, journal = [0.0], tmp_path / "privacy.jsonl"
    for _ in range(3):
        process = get_context("fork").Process(target=conducted)
        process.start()
        before, deadline = _made(journal), time.monotonic() + 60
        while _made(journal) < before + 3 and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        spent.append(Budget(8, 1e-5, 40, _made(journal)).spent)
    assert spent[0] < spent[1] < spent[2] < spent[3] <= 8


def _made(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0
