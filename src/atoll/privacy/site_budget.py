"""Keep the privacy budget of a site over all its runs: the entry `privacy: dp` in site.yaml, and a journal on disk.

One release with noise multiplier z is a shift of a normal distribution by 1 / z, and releases compose by adding squares
(see `accountant`), also those of different runs, methods and servers. So a run of T releases costs T / z^2, and the
costs c of all releases within the period are (epsilon, delta)-private if a shift by sqrt(sum c) is.
"""

import json
import os
import time
from collections.abc import Callable
from math import isfinite, sqrt
from pathlib import Path
from typing import NamedTuple

from ..errors import AtollError, unknown
from ..utils.files import to_json
from .accountant import compute_delta, compute_epsilon
from .budget import JOURNAL, Budget

DAY = 86_400.0
PERIODS = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY, "ever": float("inf")}  # seconds
ROUNDING = 1e-9  # relative: a run that asks for the whole budget must not fail by the last digit of a sum


class BudgetRule(NamedTuple):
    """The most that may leave a site within a period.

    Args:
        epsilon: epsilon of all releases of all runs together.
        delta: delta of all releases of all runs together.
        per: a name of ``PERIODS``.
    """

    epsilon: float
    delta: float = 1e-5
    per: str = "year"


def read_budget_rule(value: object, where: str) -> BudgetRule:
    """Read the entry ``dp`` under ``privacy``; ``where`` names the file in messages."""
    if not isinstance(value, dict) or "epsilon" not in value:
        raise AtollError(f"{where}: 'dp' under 'privacy' has entries such as {{epsilon: 4, per: year}}; not {value!r}.")
    for name in value:
        if name not in BudgetRule._fields:
            raise unknown("entry under 'dp'", str(name), BudgetRule._fields, f"in {where}")
    per = value.get("per", "year")
    if per not in PERIODS:
        raise unknown("value of 'per' under 'dp'", str(per), tuple(PERIODS), f"in {where}")
    epsilon = _positive("epsilon", value["epsilon"], where)
    delta = _positive("delta", value.get("delta", 1e-5), where)
    if delta >= 1:
        raise AtollError(f"{where}: 'delta' under 'dp' is a number between 0 and 1, such as 0.00001, not {delta:g}.")
    return BudgetRule(epsilon, delta, per)


def _positive(name: str, value: object, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else 0.0  # type: ignore[arg-type]  # YAML reads 1e-5 as text.
    except (TypeError, ValueError):
        number = 0.0
    if not (number > 0 and isfinite(number)):
        raise AtollError(f"{where}: {name!r} under 'dp' is a number above 0, not {value!r}.")
    return number


def cost_of(budget: Budget, releases: int) -> float:
    """Return the cost of a number of releases of a run: the square of their common shift."""
    return releases / budget.multiplier**2


class SiteBudget:
    """Counts the releases of all runs of a site, in a journal that is written before anything leaves.

    Args:
        rule: the limit.
        folder: folder of the journal.
        now: returns the time in seconds.
    """

    def __init__(self, rule: BudgetRule, folder: Path, now: Callable[[], float] = time.time):
        self.rule = rule
        self._path = folder / JOURNAL
        self._now = now

    def allows(self, cost: float) -> bool:
        """Return True if a further cost stays within the limit."""
        shift = sqrt((self._cost() + cost) * (1 - ROUNDING))
        return compute_delta(self.rule.epsilon, shift) <= self.rule.delta

    @property
    def spent(self) -> float:
        """Return the epsilon that was spent within the period until now."""
        return compute_epsilon(self.rule.delta, sqrt(self._cost()))

    def write(self, run: str, cost: float) -> None:
        """Record the cost of releases that follow, and flush the line to disk."""
        self._cost()  # removes an incomplete line, to which the next one would be joined
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write((to_json({"time": self._now(), "run": run, "cost": cost}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _cost(self) -> float:
        """Return the cost of all releases within the period. An entry from the future counts."""
        if not self._path.exists():
            return 0.0
        *lines, torn = self._path.read_bytes().split(b"\n")
        if torn:  # A crash cut the line off, and nothing was released after it.
            os.truncate(self._path, self._path.stat().st_size - len(torn))
        since = self._now() - PERIODS[self.rule.per]
        try:
            return sum(cost for when, cost in map(_entry, lines) if when > since)
        except (ValueError, KeyError, TypeError) as reason:
            raise AtollError(
                f"{str(self._path)!r} is damaged ({reason}), so the rest of the site's privacy budget is unknown. "
                "Restore the file from a copy; no run can take part without it."
            ) from None

    def sentence(self) -> str:
        """Return the rule in plain words, with what is spent."""
        period = "over all time" if self.rule.per == "ever" else f"within a {self.rule.per}"
        return (
            f"All runs together may spend epsilon {self.rule.epsilon:g} (delta {self.rule.delta:g}) of differential "
            f"privacy {period}, and have spent {self.spent:.4g}. A run without --dp is refused."
        )


def _entry(line: bytes) -> tuple[float, float]:
    found = json.loads(line)
    when, cost = float(found["time"]), float(found["cost"])
    if not (isfinite(when) and isfinite(cost) and cost >= 0):
        raise ValueError("a line does not say how much was released")
    return when, cost
