"""Compare measured results with the numbers and the claims that a paper prints."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..report.figures.base import title as describe_setting
from ..report.seed_statistics import Difference, paired_difference
from ..report.sheets import Sheet
from ..report.table import NONE, format_score
from ..storage.run_reader import Run, value
from ..utils.stats import Stat, spread
from .papers import Cell, PrintedNumber, Recipe


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
    difference: Difference | None  # Over the means of seeds, in percentage points; None with fewer than two seeds.
    seeds: str  # Number of seeds in which the better method is above, such as "2 of 3".


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
    mine, other = (
        {
            run.seed: 100 * found
            for run in loaded[case, method]
            if (found := value(run.summary, summary_entries(recipe, method)[metric])) is not None
        }
        for method in pair
    )
    gaps = [mine[seed] - other[seed] for seed in mine if seed in other]
    won = f"{sum(g > 0 for g in gaps)} of {len(gaps)}"
    return ClaimResult(case, *pair, metric, paired_difference(mine, other), won)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def result_sheets(
    found: Sequence[ComparedNumber], loaded: Mapping[tuple[str, str], Sequence[Run]]
) -> list[Sheet]:  # fmt: skip
    """Make one table for each case: a row for each method; printed, measured and gap of each metric as columns.

    The title of a table names the data that really ran, which may stand in for those of the paper.
    """
    made = []
    for case in dict.fromkeys(c.cell.case for c in found):
        here = {(c.cell.method, c.cell.metric): c for c in found if c.cell.case == case}
        metrics = list(dict.fromkeys(metric for _, metric in here))
        columns = ["method", *(f"{metric}: {what}" for metric in metrics for what in ("paper", "measured", "gap"))]
        rows = [
            [method, *(text for metric in metrics for text in _cell_texts(here[method, metric]))]
            for method in dict.fromkeys(method for method, _ in here)
        ]
        ran = next(runs[0].summary for (where, _), runs in loaded.items() if where == case)
        made.append(Sheet(f"{case} (run on {describe_setting(ran)})", columns, rows))
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
    """Make the table of the paper's claims: differences over seeds with 95 % intervals, and verdicts."""
    rows = []
    for v in found:
        gap = v.difference
        numbers = (NONE, NONE) if gap is None else (f"{gap.mean:+.2f}", f"{gap.low:+.2f} to {gap.high:+.2f}")
        verdict = "not decided: one seed" if gap is None else gap.describe()
        rows.append([f"{v.better} > {v.worse}", v.case, v.metric, verdict, *numbers, v.seeds])
    columns = ["claim", "case", "by", "verdict", "points", "95 % interval", "in seeds"]
    return Sheet("What the paper concludes", columns, rows)
