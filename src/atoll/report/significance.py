"""Test whether two methods differ, by paired differences over clients and seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.compute as pc
from scipy.stats import wilcoxon

from ..storage.run_reader import Run


class Paired(NamedTuple):
    """The difference in score between two methods over common clients and seeds, of shares in percentage points."""

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
            mine, other = scores(run), scores(others[run.seed])
            gaps += [run.criterion.scale * (mine[i] - other[i]) for i in sorted(mine.keys() & other.keys())]
    if not gaps:
        return None
    above, below = sum(g > 0 for g in gaps), sum(g < 0 for g in gaps)
    ahead, behind = (above, below) if ours[0].criterion.higher else (below, above)
    p = float(wilcoxon(gaps, zero_method="pratt").pvalue) if ahead + behind else 1.0
    return Paired(sum(gaps) / len(gaps), len(gaps), ahead, behind, p)


def scores(run: Run) -> dict[str, float]:
    """Return the score of each client in the round that validation selected, otherwise in the last round."""
    chosen = run.summary["personal"].get("best_by_val_round", run.summary["rounds"])
    rows = run.clients.filter(pc.equal(run.clients["round"], chosen)).to_pylist()
    name = run.criterion.name
    return {str(row["client"]): row[name] for row in rows if row[name] == row[name]}
