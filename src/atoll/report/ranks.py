"""Rank methods over several data sets: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import stats

from ..errors import AtollError
from ..storage.run_reader import Run, value
from .plots.axes import Array
from .sheets import Sheet

LEVEL = 0.05  # of all tests here
FEWEST = 3  # methods that Friedman's test needs


class Ranking(NamedTuple):
    """Methods ranked over cases; a case is a setting in which scores may be compared, such as a data set.

    Attributes:
        methods: names, the best mean rank first.
        cases: names of the cases.
        ranks: ``[cases, methods]``, 1 for the best; equal scores share the mean of their ranks.
        statistic: Friedman's chi-squared.
        p: probability of such ranks if all methods were equally good.
        critical_difference: two methods whose mean ranks differ by more are not equally good (Nemenyi).
        left_out: methods that are not in every case.
    """

    methods: Sequence[str]
    cases: Sequence[str]
    ranks: Array
    statistic: float
    p: float
    critical_difference: float
    left_out: Sequence[str] = ()

    @property
    def mean_ranks(self) -> Array:
        """Return the mean rank of each method."""
        means: Array = self.ranks.mean(0)
        return means

    def equal_groups(self) -> list[tuple[int, int]]:
        """Return first and last method of each largest group within the critical difference, of two or more."""
        means, found = self.mean_ranks, list[tuple[int, int]]()
        for first in range(len(means)):
            last = max(i for i in range(first, len(means)) if means[i] - means[first] <= self.critical_difference)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found

    def describe(self) -> str:
        """Say in one sentence what Friedman's test found."""
        verdict = "differ" if self.p < LEVEL else "are not shown to differ"
        return (
            f"Over {len(self.cases)} cases, the {len(self.methods)} methods {verdict} (Friedman's test: chi-squared "
            f"{self.statistic:.2f}, p = {self.p:.3g}). Mean ranks that are more than {self.critical_difference:.2f} "
            f"apart differ at the level {LEVEL} (Nemenyi)."
        )

    def sheet(self) -> Sheet:
        """Return a table with the ranks of each method, the best first."""
        rows = [
            [name, f"{mean:.2f}", *(f"{rank:g}" for rank in own)]
            for name, mean, own in zip(self.methods, self.mean_ranks, self.ranks.T, strict=True)
        ]
        return Sheet("Ranks over data sets", ["method", "mean rank", *self.cases], rows)


def rank_runs(shown: Mapping[tuple[str, str], Sequence[Run]]) -> Ranking:
    """Rank the methods of several comparisons by their scores in the round that validation chose, means over seeds.

    Args:
        shown: the runs by case and method, of at least two cases with three methods in common.

    Raises:
        AtollError: there are too few cases or methods.
    """
    scores: dict[str, dict[str, float]] = {}
    for (case, name), runs in shown.items():
        known = [v for run in runs if (v := value(run.summary, "personal.best_by_val")) is not None]
        own = scores.setdefault(case, {})
        if known:
            own[name] = -runs[0].criterion.rank(fmean(known))
    everywhere = set.intersection(*(set(own) for own in scores.values())) if scores else set()
    if len(scores) < 2 or len(everywhere) < FEWEST:
        raise AtollError(
            f"Ranks need at least 2 cases and {FEWEST} methods that all of them have, and there are "
            f"{len(scores)} and {len(everywhere)}. Give the folders of several comparisons with the same methods."
        )
    names = sorted(everywhere)
    ranking = rank_scores(names, list(scores), np.array([[own[name] for name in names] for own in scores.values()]))
    others = {name for own in scores.values() for name in own} - everywhere
    return ranking._replace(left_out=sorted(others))


def rank_scores(methods: Sequence[str], cases: Sequence[str], scores: Array) -> Ranking:
    """Rank methods by their scores.

    Args:
        methods: names of at least three methods.
        cases: names of the cases.
        scores: ``[cases, methods]``, higher is better.
    """
    ranks: Array = stats.rankdata(-scores, axis=1)
    order = sorted(range(len(methods)), key=lambda i: (ranks[:, i].mean(), methods[i]))
    if (ranks == ranks[:, :1]).all():  # no method is better anywhere, and the statistic is 0 / 0
        statistic, p = 0.0, 1.0
    else:
        statistic, p = map(float, stats.friedmanchisquare(*scores.T))
    n, k = ranks.shape
    # The studentised range for infinitely many degrees of freedom, as in Demšar's Table 5.
    studentised = float(stats.studentized_range.ppf(1 - LEVEL, k, math.inf)) / math.sqrt(2)
    critical = studentised * math.sqrt(k * (k + 1) / (6 * n))
    return Ranking([methods[i] for i in order], cases, ranks[:, order], statistic, p, critical)
