"""The privacy budget of a site over all its runs."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli import main
from atoll.errors import AtollError
from atoll.privacy.accountant import compute_epsilon
from atoll.privacy.budget import Budget
from atoll.privacy.site_budget import DAY, BudgetRule, SiteBudget, cost_of, read_budget_rule


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_costs_of_runs_add_up_as_squares_of_shifts(tmp_path: Path) -> None:
    """Runs of 4 releases with z = 2 and of 9 releases with z = 6 cost 4/4 + 9/36 = 1.25: a shift by sqrt(1.25)."""
    site = SiteBudget(BudgetRule(8.0), tmp_path)
    for run, cost in (("a", 4 / 2**2), ("b", 9 / 6**2)):
        site.write(run, cost)

    assert site.spent == pytest.approx(compute_epsilon(1e-5, sqrt(1.25)))


def test_run_that_asks_for_the_whole_limit_is_admitted_and_nothing_after_it(tmp_path: Path) -> None:
    site, run = SiteBudget(BudgetRule(4.0), tmp_path), Budget(4.0, 1e-5, planned=7)
    assert site.allows(cost_of(run, 7))
    for _ in range(7):
        assert site.allows(cost_of(run, 1))
        site.write("a", cost_of(run, 1))

    assert site.spent == pytest.approx(4.0)
    assert not site.allows(cost_of(run, 1))
    assert not SiteBudget(BudgetRule(4.0), tmp_path).allows(cost_of(run, 1))  # after a restart


def test_entries_leave_the_window_after_a_year(tmp_path: Path) -> None:
    clock = Clock()
    site = SiteBudget(BudgetRule(4.0), tmp_path, clock)
    site.write("a", 1.0)

    clock.time = 364 * DAY
    assert site.spent > 0
    clock.time = 366 * DAY
    assert site.spent == 0


def test_entry_from_the_future_counts(tmp_path: Path) -> None:
    clock = Clock()
    clock.time = 10 * DAY
    site = SiteBudget(BudgetRule(4.0), tmp_path, clock)
    site.write("a", 1.0)

    clock.time = 0.0
    assert site.spent > 0


def test_line_that_a_crash_cut_off_is_removed_and_others_count(tmp_path: Path) -> None:
    site = SiteBudget(BudgetRule(4.0), tmp_path)
    site.write("a", 1.0)
    spent = site.spent
    with (tmp_path / "privacy.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "co')

    site.write("b", 0.0)

    assert site.spent == spent


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"time": 1, "cost": -5}\n',
        b"{}\n",
        b'{"time": 1, "cost": NaN}\n',
        b'{"time": 1, "cost": Infinity}\n',
        b'{"time": NaN, "cost": 1}\n',
    ],
)
def test_damaged_journal_admits_nothing(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "privacy.jsonl").write_bytes(line)
    with pytest.raises(AtollError, match="damaged"):
        SiteBudget(BudgetRule(4.0), tmp_path).allows(0.0)


def test_rule_is_read_with_defaults(tmp_path: Path) -> None:
    assert read_budget_rule({"epsilon": 4, "delta": "1e-6"}, "site.yaml") == BudgetRule(4.0, 1e-6, "year")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (4, "entries such as"),
        ({"delta": 1e-5}, "entries such as"),
        ({"epsilon": 0}, "above 0"),
        ({"epsilon": "much"}, "above 0"),
        ({"epsilon": float("inf")}, "above 0"),
        ({"epsilon": float("nan")}, "above 0"),
        ({"epsilon": 4, "delta": 2}, "between 0 and 1"),
        ({"epsilon": 4, "per": "decade"}, "year"),
        ({"epsilon": 4, "each": "year"}, "per"),
    ],
)
def test_malformed_rules_are_refused_with_a_sentence(value: Any, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        read_budget_rule(value, "site.yaml")


def test_rules_command_says_what_is_spent(tmp_path: Path) -> None:
    rule = "{dp: {epsilon: 4, delta: 1e-5, per: year}}"
    (tmp_path / "site.yaml").write_text(f"name: north\ndata: rows.npz\nprivacy: {rule}\n")

    shown = CliRunner().invoke(main, ["deploy", "rules", str(tmp_path)])

    assert "may spend epsilon 4 (delta 1e-05) of differential privacy within a year, and have spent 0." in shown.output
