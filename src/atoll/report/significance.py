"""Test whether two methods differ, by paired differences over clients and seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.compute as pc
from scipy.stats import wilcoxon

from ..storage.run_reader import Run


class Paired(NamedTuple):
    """The difference in accuracy between two methods, in percentage points, over common clients and seeds."""

    difference: float
    pairs: int
    ahead: int  # clients for whom the first one is better
    behind: int
    p: float  # Wilcoxon's signed-rank test, two-sided; 1 if no client differs


def paired(ours: Sequence[Run], theirs: Sequence[Run]) -> Paired | None:
    """Compare the first method with the second; return None if they share no client of the same seed."""
    gaps: list[float] = []
    others = {run.seed: run for run in theirs}
    for run in ours:
        if run.seed in others:
            mine, other = accuracies(run), accuracies(others[run.seed])
            gaps += [100 * (mine[i] - other[i]) for i in sorted(mine.keys() & other.keys())]
    if not gaps:
        return None
    ahead, behind = sum(g > 0 for g in gaps), sum(g < 0 for g in gaps)
    p = float(wilcoxon(gaps, zero_method="pratt").pvalue) if ahead + behind else 1.0
    return Paired(sum(gaps) / len(gaps), len(gaps), ahead, behind, p)


def accuracies(run: Run) -> dict[str, float]:
    """Return the accuracy of each client in the round that validation selected, otherwise in the last round."""
    chosen = run.summary["personal"].get("best_by_val_round", run.summary["rounds"])
    rows = run.clients.filter(pc.equal(run.clients["round"], chosen)).to_pylist()
    return {str(row["client"]): row["accuracy"] for row in rows if row["accuracy"] == row["accuracy"]}
