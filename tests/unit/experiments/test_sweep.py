"""A search over settings: which points are tried, and what decides."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli import main
from atoll.config import Config
from atoll.errors import AtollError
from atoll.experiments.search import Axis, Grid, Random, parse_axis
from atoll.experiments.sweep import Trial, best_trial, config_at, is_matrix, run_directory, trial_of
from atoll.storage.run_reader import Run

QUICK = ["--rows", "300", "--clients", "4", "--rounds", "2", "--epochs", "1"]


def sweep(*words: str) -> Any:
    return CliRunner().invoke(main, ["sweep", *words])


def outcome(val: float, test: float, finished: bool = True) -> Trial:
    return Trial({"lam": str(val)}, val, test, 0.0, 0.0, finished)


# -- points ------------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination() -> None:
    (points,) = Grid([parse_axis("lam=0.1,1"), parse_axis("lr=0.01,0.05,0.1")]).batches()
    assert [(p["lam"], p["lr"]) for p in points] == [
        ("0.1", "0.01"), ("0.1", "0.05"), ("0.1", "0.1"), ("1", "0.01"), ("1", "0.05"), ("1", "0.1")
    ]  # fmt: skip


def test_a_range_of_powers_of_ten_is_drawn_by_size() -> None:
    """Halfway from 0.01 to 100 by size is their geometric mean, 1; from 0 to 4 it is 2."""
    assert parse_axis("lam=0.01..100").at(0.5) == "1"
    assert parse_axis("lam=0..4").at(0.5) == "2"
    assert parse_axis("lam=2..4").at(0.25) == "2.5"


def test_listed_values_are_drawn_evenly() -> None:
    a = parse_axis("optimiser=sgd,adam")
    assert [a.at(share) for share in (0, 0.49, 0.5, 0.999)] == ["sgd", "sgd", "adam", "adam"]


def test_random_points_follow_from_the_seed() -> None:
    axes = [parse_axis("lam=0.001..10"), parse_axis("lr=0.01,0.1")]
    (first,), (again,), (other,) = (list(Random(axes, 20, seed).batches()) for seed in (0, 0, 1))
    assert first == again != other
    assert len({p["lam"] for p in first}) == 20
    assert {p["lr"] for p in first} == {"0.01", "0.1"}
    assert all(0.001 <= float(p["lam"]) <= 10 for p in first)


@pytest.mark.parametrize("text", ["lam", "lam=", "=1", "lam=2..1", "lam=a..b", "lam=1,1", "lam=1..inf"])
def test_what_is_no_axis(text: str) -> None:
    with pytest.raises(AtollError):
        parse_axis(text)


def test_a_grid_over_a_range_is_refused() -> None:
    with pytest.raises(AtollError, match="--random"):
        Grid([parse_axis("lam=0..1")])


def test_a_point_sets_options_and_settings() -> None:
    made = config_at(Config(method="fedprox", settings={"mu": 1.0}), {"lr": "0.5", "mu": "0.1", "rate": "0.5"})
    assert (made.lr, made.rate, made.settings) == (0.5, 0.5, {"mu": "0.1"})


def test_which_points_make_a_matrix() -> None:
    (square,) = Grid([Axis("a", ("1", "2")), Axis("b", ("3", "4"))]).batches()
    assert is_matrix(square)
    assert not is_matrix(square[:3])
    assert not is_matrix([{"a": "1"}, {"a": "2"}])


# -- the choice --------------------------------------------------------------------------------------------------------


def test_validation_decides_and_test_has_no_say() -> None:
    better, tempting = outcome(val=80.0, test=70.0), outcome(val=79.0, test=99.0)
    assert best_trial([tempting, better]) is better


def test_a_run_that_broke_cannot_win() -> None:
    assert best_trial([outcome(90.0, 90.0, finished=False), outcome(50.0, 50.0)]).val == 50.0
    with pytest.raises(AtollError, match="No point"):
        best_trial([outcome(float("nan"), 50.0)])


def test_means_over_seeds() -> None:
    """Validation 0.7 and 0.9: mean 80 %, deviation 10 * sqrt(2) = 14.142; test 0.5 and 0.6: 55 % and 7.071."""

    def run(val: float, test: float) -> Run:
        summary = {
            "status": "finished", "personal": {"best_by_val": test, "metrics": {"best_by_val": {"val": val}}}
        }  # fmt: skip
        return Run(Path(), summary, (), None, {}, {})

    t = trial_of({"lam": "1"}, [run(0.7, 0.5), run(0.9, 0.6)], "personal")
    assert (t.val, t.test) == (pytest.approx(80), pytest.approx(55))
    assert (t.val_std, t.test_std) == (pytest.approx(14.142, abs=1e-3), pytest.approx(7.071, abs=1e-3))


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_sweep_from_the_command_line(tmp_path: Path, without_report: None) -> None:
    words = ["fedprox", "--grid", "mu=0,10", "--grid", "lr=0.01,0.1", *QUICK, "--out", str(tmp_path)]
    shown = sweep(*words)
    assert shown.exit_code == 0, shown.output
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert [t["point"] for t in kept["tried"]] == [{"mu": mu, "lr": lr} for mu in ("0", "10") for lr in ("0.01", "0.1")]
    assert kept["best"]["val"] == max(t["val"] for t in kept["tried"])
    chosen = kept["best"]["point"]
    assert f"mu={chosen['mu']}, lr={chosen['lr']}" in shown.output
    assert (tmp_path / "sweep.csv").read_text().splitlines()[0] == "mu,lr,val,val_std,test,test_std,finished"
    again = sweep(*words, "--resume", "--json")
    assert json.loads(again.stdout)["tried"] == kept["tried"]


def test_a_resumed_sweep_leaves_finished_runs_alone(tmp_path: Path, without_report: None) -> None:
    words = ["fedprox", "--grid", "mu=0,10", *QUICK, "--out", str(tmp_path)]
    assert sweep(*words, "--quiet").exit_code == 0
    for run in tmp_path.glob("mu*"):
        (run / "report.html").touch()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(before) == 2
    assert sweep(*words, "--quiet", "--resume").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == before


def test_a_setting_the_method_does_not_have(tmp_path: Path) -> None:
    shown = sweep("fedprox", "--grid", "mo=1,2", *QUICK, "--out", str(tmp_path))
    assert shown.exit_code == 2
    assert "mu" in shown.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["--grid", "mu=1", "--grid", "mu=2"], ["--grid", "mu=0..1", "--random", "2", "--optuna", "2"]]
)
def test_contradictions_are_refused(words: list[str]) -> None:
    assert sweep("fedprox", *words, *QUICK).exit_code == 2


def test_points_with_long_names_have_places_of_their_own(tmp_path: Path) -> None:
    points = [
        {"personal_optim.weight_decay": "0.001", "personal_optim.batch_size": "32", "mu": mu} for mu in ("1", "2")
    ]
    assert len({run_directory(tmp_path, p, 0) for p in points}) == 2
    assert all(len(run_directory(tmp_path, p, 0).name) < 100 for p in points)
