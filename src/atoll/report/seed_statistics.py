"""Tell whether two methods differ, from the means of seeds: intervals, tests, corrections and verdicts.

Clients of one seed share a server, a partition and initial weights, so their scores are not independent. The mean over
the clients of one seed is one observation; all intervals and tests here are over such means, paired by seed.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

CONFIDENCE = 0.95


class Verdict(StrEnum):
    """What an interval says about the claim that a difference is positive."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"


class Difference(NamedTuple):
    """The mean difference between two methods over seeds, with a confidence interval from the paired t-test."""

    mean: float
    low: float
    high: float
    p: float  # two-sided
    seeds: int

    @property
    def margin(self) -> float:
        """Half of the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def verdict(self) -> Verdict:
        """Decide whether the difference is positive: only if the interval excludes zero."""
        if self.low > 0:
            return Verdict.HOLDS
        return Verdict.FAILS if self.high < 0 else Verdict.OPEN

    def describe(self) -> str:
        """Return the verdict, with half of the interval's width if nothing is decided."""
        return f"{self.verdict} (±{self.margin:.2g})" if self.verdict is Verdict.OPEN else str(self.verdict)


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Compare two methods by their means of seeds.

    Args:
        ours: a score for each seed, such as the mean accuracy over the clients.
        theirs: the same of the other method.

    Returns:
        Our mean minus theirs over the common seeds, or None if fewer than two seeds are common: one seed says nothing
        about the spread between seeds.
    """
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return None if len(gaps) < 2 else difference(gaps)


def difference(gaps: Sequence[float]) -> Difference:
    """Return mean, interval and p-value of two or more paired differences."""
    n = len(gaps)
    mean = math.fsum(gaps) / n
    error = math.sqrt(math.fsum((g - mean) ** 2 for g in gaps) / (n - 1) / n)
    if error == 0:
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0, n)
    margin = error * _quantile(n - 1)
    p = 2 * float(_student().sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - margin, mean + margin, p, n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of comparisons by Holm's step-down procedure.

    The smallest of m values is multiplied by m, the next one by m - 1, and so on; values never fall and end at 1.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def seeds_needed(gaps: Sequence[float]) -> int | None:
    """Return how many seeds would decide if mean and spread stayed as they are; None if the mean is zero.

    This is an order of magnitude for planning, not a promise: mean and spread are estimates themselves.
    """
    found = difference(gaps)
    if found.mean == 0:
        return None
    deviation = math.sqrt(math.fsum((g - found.mean) ** 2 for g in gaps) / (len(gaps) - 1))
    n = 2
    while n < 10_000 and deviation / math.sqrt(n) * _quantile(n - 1) >= abs(found.mean):
        n += 1
    return n


def _student() -> Any:
    """Return Student's t distribution. Imported when needed: a command of one run should not wait half a second."""
    from scipy import stats

    return stats.t


def _quantile(freedom: int) -> float:
    """Return how many standard errors lie between mean and end of a confidence interval."""
    return float(_student().ppf((1 + CONFIDENCE) / 2, freedom))
