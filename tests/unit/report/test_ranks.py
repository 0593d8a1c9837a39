"""Ranks over data sets, by hand numbers and by a published example."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.run_files import make_run

from atoll.cli import main
from atoll.report.ranks import rank_scores

METHODS = ["a", "b", "c"]
CASES = ["w", "x", "y", "z"]


def test_mean_ranks_and_friedmans_statistic_by_hand() -> None:
    """Ranks (1, 2, 3), (1, 3, 2), (1, 2, 3), (2, 1, 3) add up to 5, 8, 11: mean ranks 1.25, 2, 2.75.

    chi^2 = 12 / (N k (k + 1)) sum_j R_j^2 - 3 N (k + 1) = 12 / 48 * (25 + 64 + 121) - 48 = 4.5, and with 2 degrees of
    freedom p = exp(-4.5 / 2).
    """
    scores = np.array([[0.9, 0.8, 0.7], [0.6, 0.4, 0.5], [0.3, 0.2, 0.1], [0.7, 0.8, 0.6]])

    found = rank_scores(METHODS, CASES, scores)

    assert list(found.methods) == METHODS
    assert found.mean_ranks.tolist() == [1.25, 2.0, 2.75]
    assert found.statistic == pytest.approx(4.5)
    assert found.p == pytest.approx(np.exp(-2.25))


def test_equal_scores_share_the_mean_of_their_ranks() -> None:
    found = rank_scores(METHODS, ["w", "x"], np.array([[0.5, 0.5, 0.1], [0.5, 0.9, 0.1]]))

    assert dict(zip(found.methods, found.ranks.T.tolist(), strict=True)) == {"b": [1.5, 1], "a": [1.5, 2], "c": [3, 3]}


def test_methods_that_are_equal_everywhere_do_not_differ() -> None:
    found = rank_scores(METHODS, ["w", "x"], np.full((2, 3), 0.5))

    assert (found.statistic, found.p) == (0.0, 1.0)
    assert found.equal_groups() == [(0, 2)]


def test_critical_difference_is_that_of_demsars_example() -> None:
    """Demšar (2006), section 3.2.4: four methods on 14 data sets have q = 2.569 and a critical difference of 1.25."""
    found = rank_scores(["a", "b", "c", "d"], [str(i) for i in range(14)], np.tile([4.0, 3.0, 2.0, 1.0], (14, 1)))

    assert found.critical_difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), rel=1e-3)
    assert found.equal_groups() == [(0, 1), (1, 2), (2, 3)]  # neighbours are 1 apart, others at least 2


def compared(root: Path, data: str, accuracies: dict[str, float]) -> Path:
    for method, accuracy in accuracies.items():
        make_run(root / data / method, label=method, by_val=accuracy, data=data)
    return root / data


def test_report_ranks_methods_over_several_comparisons(tmp_path: Path) -> None:
    folders = [
        compared(tmp_path, "digits", {"fedavg": 0.9, "local": 0.7, "ditto": 0.8, "scd": 0.5}),
        compared(tmp_path, "mnist", {"fedavg": 0.6, "local": 0.7, "ditto": 0.8}),
    ]

    done = CliRunner().invoke(main, ["report", *map(str, folders), "--ranks", "--out", str(tmp_path / "r.html")])

    assert done.exit_code == 0, done.output
    assert "the 3 methods are not shown to differ" in done.output
    assert "Not in every case, and left out: scd." in done.output
    rows = [line.split() for line in done.output.splitlines() if line.strip()[:1] in "│┃"]
    ranks = {cells[1]: cells[3] for cells in rows if cells[1] in ("fedavg", "local", "ditto") and len(cells) == 9}
    assert ranks == {"ditto": "1.50", "fedavg": "2.00", "local": "2.50"}
    assert "critical difference" in (tmp_path / "r.html").read_text()


def test_ranks_of_one_data_set_are_refused(tmp_path: Path) -> None:
    folder = compared(tmp_path, "digits", {"fedavg": 0.9, "local": 0.7, "ditto": 0.8})

    done = CliRunner().invoke(main, ["report", str(folder), "--ranks"])

    assert done.exit_code == 2
    assert "at least 2 cases" in done.output
