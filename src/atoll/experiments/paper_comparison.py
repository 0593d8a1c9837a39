"""Compare measured results with the numbers and the claims that a paper prints."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..report.sheets import Sheet
from ..report.significance import paired
from ..report.table import NONE, format_score
from ..storage.run_reader import Run, value
from ..utils.stats import Stat, spread
from .papers import MEASURES, Cell, PrintedNumber, Recipe


class ComparedNumber(NamedTuple):
    """A number of the paper beside the measured one."""

    cell: Cell
    printed: PrintedNumber | None
    measured: Stat | None  # None: not run at this scale, or not available for every seed.

    @property
    def gap(self) -> float | None:
        """Measured minus printed value; None if one of them is missing."""
        if self.printed is None or self.measured is None or math.isnan(self.printed.value):
            return None
        return self.measured.mean - self.printed.value


def compare_numbers(recipe: Recipe, loaded: Mapping[tuple[str, str], Sequence[Run]]) -> list[ComparedNumber]:
    """Compare the printed and the measured numbers of all cases and methods; accuracies are in percent.

    ``loaded`` holds the runs of all seeds by case and method.
    """
    out = []
    for (case, method), runs in loaded.items():
        for metric, dotted in summary_entries(recipe, method).items():
            cell = Cell(case, method, metric)
            out.append(ComparedNumber(cell, recipe.printed.get(cell), mean_over_seeds(runs, dotted)))
    return out


def summary_entries(recipe: Recipe, method: str) -> dict[str, str]:
    """Return the entry of a run's summary for each metric of a method."""
    return {**recipe.measures, **recipe.methods[method].measures}


def mean_over_seeds(runs: Sequence[Run], dotted: str) -> Stat | None:
    """Return mean and standard deviation over seeds of a summary entry; None if a run does not have the entry."""
    values = [value(run.summary, dotted.removeprefix("=")) for run in runs]
    known = [v if dotted.startswith("=") else 100 * v for v in values if v is not None]
    return spread(known) if known and len(known) == len(values) else None


# ---------------------------------------------------------------------------------------------------------------------
# Claims


class ClaimResult(NamedTuple):
    """Result of a claim in one case: is one method above another by a metric?"""

    case: str
    better: str
    worse: str
    metric: str
    difference: float  # Difference of the means, in percentage points.
    seeds: str  # Number of seeds in which the better method is above, such as "2 of 3".
    p: float  # Paired test over clients and seeds; NaN for metrics that are not measured per client.

    @property
    def holds(self) -> bool:
        return self.difference > 0


def check_claims(recipe: Recipe, loaded: Mapping[tuple[str, str], Sequence[Run]]) -> list[ClaimResult]:
    """Check every adjacent pair of every claim, such as ``DC-PFL > FedGH > Local-T``, in every case that was run."""
    shares = [metric for metric, dotted in recipe.measures.items() if not dotted.startswith("=")]
    return [
        _check_claim(recipe, case, pair, metric, loaded)
        for claim in recipe.claims
        for pair in pairwise(word.strip() for word in claim.split(">"))
        for case in recipe.cases
        if all((case, method) in loaded for method in pair)
        for metric in shares
    ]


def _check_claim(
    recipe: Recipe,
    case: str,
    pair: tuple[str, str],
    metric: str,
    loaded: Mapping[tuple[str, str], Sequence[Run]],
) -> ClaimResult:
    entries = [summary_entries(recipe, method)[metric] for method in pair]
    sides = [loaded[case, method] for method in pair]
    mine, other = (
        {run.seed: value(run.summary, dotted) or 0.0 for run in side}
        for side, dotted in zip(sides, entries, strict=True)
    )
    gaps = [100 * (mine[seed] - other[seed]) for seed in mine if seed in other]
    test = paired(*sides) if set(entries) == {MEASURES["accuracy"]} else None
    mean = sum(gaps) / len(gaps) if gaps else math.nan
    won = f"{sum(g > 0 for g in gaps)} of {len(gaps)}"
    return ClaimResult(case, *pair, metric, mean, won, test.p if test else math.nan)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def result_sheets(recipe: Recipe, found: Sequence[ComparedNumber]) -> list[Sheet]:
    """Make one table for each case: a row for each method; printed, measured and gap of each metric as columns."""
    made = []
    for case in dict.fromkeys(c.cell.case for c in found):
        here = {(c.cell.method, c.cell.metric): c for c in found if c.cell.case == case}
        metrics = list(dict.fromkeys(metric for _, metric in here))
        columns = ["method", *(f"{metric}: {what}" for metric in metrics for what in ("paper", "measured", "gap"))]
        rows = [
            [method, *(text for metric in metrics for text in _cell_texts(here[method, metric]))]
            for method in dict.fromkeys(method for method, _ in here)
        ]
        made.append(Sheet(case, columns, rows))
    return made


def _cell_texts(c: ComparedNumber) -> tuple[str, str, str]:
    printed = None if c.printed is None or math.isnan(c.printed.value) else c.printed
    std = None if printed is None or math.isnan(printed.std) else printed.std
    return (
        format_score(None if printed is None else Stat(printed.value, std)),
        format_score(c.measured),
        NONE if c.gap is None else f"{c.gap:+.2f}",
    )


def claim_sheet(found: Sequence[ClaimResult]) -> Sheet:
    """Make the table of the paper's claims and whether each holds."""
    rows = [
        [
            f"{v.better} > {v.worse}",
            v.case,
            v.metric,
            "yes" if v.holds else "no",
            f"{v.difference:+.2f}",
            v.seeds,
            NONE if math.isnan(v.p) else f"{v.p:.2g}",
        ]
        for v in found
    ]
    columns = ["claim", "case", "by", "holds", "points", "in seeds", "p"]
    return Sheet("What the paper concludes", columns, rows)
