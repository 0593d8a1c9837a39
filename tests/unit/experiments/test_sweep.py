"""The sweep command: results, resuming and refused options."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli import main

QUICK = ["--rows", "300", "--clients", "4", "--rounds", "2", "--epochs", "1"]


def sweep(*words: str) -> Any:
    return CliRunner().invoke(main, ["sweep", *words])


def test_sweep_command_writes_its_results(tmp_path: Path, without_report: None) -> None:
    words = ["fedprox", "--grid", "mu=0,10", "--grid", "lr=0.01,0.1", *QUICK, "--out", str(tmp_path)]
    shown = sweep(*words)
    assert shown.exit_code == 0, shown.output
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert [t["point"] for t in kept["tried"]] == [{"mu": mu, "lr": lr} for mu in (0, 10) for lr in (0.01, 0.1)]
    assert kept["best"]["val"] == max(t["val"] for t in kept["tried"])
    chosen = kept["best"]["point"]
    assert f"mu={chosen['mu']}, lr={chosen['lr']}" in shown.output
    assert (tmp_path / "sweep.csv").read_text().splitlines()[0] == "mu,lr,val,val_std,test,test_std,finished"
    again = sweep(*words, "--resume", "--json")
    assert json.loads(again.stdout)["tried"] == kept["tried"]


def test_resumed_sweep_does_not_repeat_finished_runs(tmp_path: Path, without_report: None) -> None:
    words = ["fedprox", "--grid", "mu=0,10", *QUICK, "--out", str(tmp_path)]
    assert sweep(*words, "--quiet").exit_code == 0
    for run in tmp_path.glob("mu*"):
        (run / "report.html").touch()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(before) == 2
    assert sweep(*words, "--quiet", "--resume").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == before


def test_sweep_over_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    shown = sweep("fedprox", "--grid", "mo=1,2", *QUICK, "--out", str(tmp_path))
    assert shown.exit_code == 2
    assert "mu" in shown.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["--grid", "mu=1", "--grid", "mu=2"], ["--grid", "mu=0..1", "--random", "2", "--optuna", "2"]]
)
def test_contradictory_sweep_options_are_refused(words: list[str]) -> None:
    assert sweep("fedprox", *words, *QUICK).exit_code == 2
