"""The reproducibility checklist, filled in from runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUICK = ("--rows", 200, "--clients", 3, "--rounds", 2, "--epochs", 1)


@pytest.mark.usefixtures("without_report")
def test_checklist_answers_from_the_files_of_runs(atoll: Callable[..., Any]) -> None:
    atoll("compare", "local", "ditto", *QUICK, "--seeds", "0,1", "--set", "ditto.lam=0.25", "--out", "both", "--quiet")

    text = atoll("report", "both", "--checklist").stdout

    assert "[x] Methods: " in text
    assert "lam = 0.25" in text
    assert "\n    - local: optim = sgd" in text
    assert "optim.lr = 0.01" in text
    assert "digits: 3 clients by partition dirichlet:0.5, split client_811" in text
    assert "Digest of the data: f1d89496322b" in text
    assert "[x] Seeds: 0, 1." in text
    assert "[x] Spread over seeds." in text
    assert "torch 2" in text


@pytest.mark.usefixtures("without_report")
def test_checklist_asks_for_more_seeds(atoll: Callable[..., Any]) -> None:
    atoll("run", "local", *QUICK, "--out", "one", "--quiet")

    assert "[ ] Spread over seeds: run several seeds" in atoll("report", "one", "--checklist").stdout


@pytest.mark.usefixtures("without_report")
def test_exported_table_has_the_chosen_columns(atoll: Callable[..., Any], refused: Callable[..., str]) -> None:
    atoll("compare", "local", "fedavg", *QUICK, "--out", "both", "--quiet")

    atoll("report", "both", "--export", "table.tex", "--columns", "best_by_val,mb_up,p")

    lines = Path("table.tex").read_text().splitlines()
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r"method & by val & MB up & p \\"
    assert "Unknown column 'speed'" in refused("report", "both", "--export", "table.tex", "--columns", "speed")
