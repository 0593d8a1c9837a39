"""Points of a sweep: configurations, accuracies over seeds, and the choice of the best."""

from pathlib import Path

import pytest

from atoll.config import Config
from atoll.errors import AtollError
from atoll.experiments.search import Axis, Grid
from atoll.experiments.trials import Trial, best_trial, config_at, is_matrix, run_directory, trial_of
from atoll.storage.run_reader import Run


def outcome(val: float, test: float, finished: bool = True) -> Trial:
    return Trial({"lam": str(val)}, val, test, 0.0, 0.0, finished)


def test_config_at_sets_options_and_settings() -> None:
    made = config_at(Config(method="fedprox", settings={"mu": 1.0}), {"lr": "0.5", "mu": "0.1", "rate": "0.5"})
    assert (made.lr, made.rate, made.settings) == (0.5, 0.5, {"mu": "0.1"})


def test_is_matrix_for_all_combinations_of_two_settings() -> None:
    (square,) = Grid([Axis("a", ("1", "2")), Axis("b", ("3", "4"))]).batches()
    assert is_matrix(square)
    assert not is_matrix(square[:3])
    assert not is_matrix([{"a": "1"}, {"a": "2"}])


def test_best_trial_has_the_highest_validation_accuracy() -> None:
    better, tempting = outcome(val=80.0, test=70.0), outcome(val=79.0, test=99.0)
    assert best_trial([tempting, better]) is better


def test_best_trial_ignores_unfinished_runs() -> None:
    assert best_trial([outcome(90.0, 90.0, finished=False), outcome(50.0, 50.0)]).val == 50.0
    with pytest.raises(AtollError, match="No point"):
        best_trial([outcome(float("nan"), 50.0)])


def test_trial_averages_accuracies_over_seeds() -> None:
    """Validation 0.7 and 0.9: mean 80 %, deviation 10 * sqrt(2) = 14.142; test 0.5 and 0.6: 55 % and 7.071."""

    def run(val: float, test: float) -> Run:
        summary = {
            "status": "finished", "personal": {"best_by_val": test, "metrics": {"best_by_val": {"val": val}}}
        }  # fmt: skip
        return Run(Path(), summary, (), None, {}, {})

    t = trial_of({"lam": "1"}, [run(0.7, 0.5), run(0.9, 0.6)], "personal")
    assert (t.val, t.test) == (pytest.approx(0.8), pytest.approx(0.55))
    assert (t.val_std, t.test_std) == (pytest.approx(0.14142, abs=1e-5), pytest.approx(0.07071, abs=1e-5))


def test_points_with_long_names_have_different_directories(tmp_path: Path) -> None:
    points = [
        {"personal_optim.weight_decay": "0.001", "personal_optim.batch_size": "32", "mu": mu} for mu in ("1", "2")
    ]
    assert len({run_directory(tmp_path, p, 0) for p in points}) == 2
    assert all(len(run_directory(tmp_path, p, 0).name) < 100 for p in points)
