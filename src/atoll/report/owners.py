"""Tell what owners of data gain over training alone: how many gain or lose, by how much, and what leaves them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from ..storage.run_reader import Run, value
from .groups import Group

ALONE = "local"  # the method by which every owner trains alone
DRAWS = 2000  # bootstrap resamples of owners


class OwnerGains(NamedTuple):
    """What a method gives owners over training alone, of shares in percentage points.

    Args:
        method: the method.
        owners: number of owners that both methods have scored.
        gain: owners with a better score than alone.
        lose: owners with a worse score.
        mean: mean gain over owners; above 0 is better.
        low, high: ends of the 95 % interval of the mean, over resampled owners.
        megabytes: what left an owner during the run, on average.
    """

    method: str
    owners: int
    gain: int
    lose: int
    mean: float
    low: float
    high: float
    megabytes: float


def compare_with_alone(found: Sequence[Group]) -> list[OwnerGains]:
    """Compare every method with training alone, the first groups first; empty if no run trained alone."""
    alone = next((group for group in found if group.runs[0].label == ALONE), None)
    if alone is None:
        return []
    made = [_gains(group, alone) for group in found if group is not alone]
    return [gains for gains in made if gains is not None]


def _gains(group: Group, alone: Group) -> OwnerGains | None:
    others = {run.seed: run for run in alone.runs}
    gaps: dict[str, list[float]] = defaultdict(list)
    for run in group.runs:
        if run.seed in others:
            mine, other = _client_scores(run), _client_scores(others[run.seed])
            for i in mine.keys() & other.keys():
                gaps[_owner(run, i)].append(mine[i] - other[i])
    if not gaps:
        return None
    form = group.criterion
    sign = form.scale if form.higher else -form.scale
    means = sign * np.array([np.mean(own) for _, own in sorted(gaps.items())])
    rng = np.random.default_rng(0)
    drawn = means[rng.integers(0, len(means), (DRAWS, len(means)))].mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    up = [(value(run.summary, "bytes.up") or 0.0) / int(run.summary["clients"]) for run in group.runs]
    return OwnerGains(
        group.name,
        len(means),
        int((means > 0).sum()),
        int((means < 0).sum()),
        float(means.mean()),
        float(low),
        float(high),
        float(np.mean(up)) / 1e6,
    )


def _client_scores(run: Run) -> dict[str, float]:
    """Return the score of each client in the round that validation selected, otherwise in the last round."""
    chosen = run.summary["personal"].get("best_by_val_round", run.summary["rounds"])
    rows = run.clients.filter(pc.equal(run.clients["round"], chosen)).to_pylist()
    name = run.criterion.name
    return {str(row["client"]): row[name] for row in rows if row[name] == row[name]}


def _owner(run: Run, client: str) -> str:
    """Return the name of an owner: of natural clients the same under every seed, of others one for each seed."""
    return client if run.summary["partition"] == "natural" else f"{run.seed}/{client}"


def describe_gains(gains: OwnerGains, percent: bool) -> str:
    """Return what owners gain in one sentence."""
    unit = " points" if percent else ""
    few = "" if gains.owners > 9 else "; few owners, so look at each of them"
    return (
        f"With {gains.method}, {gains.gain} of {gains.owners} owners gain over training alone and {gains.lose} lose: "
        f"{gains.mean:+.2f}{unit} on average (95 % interval {gains.low:+.2f} to {gains.high:+.2f}{few}). "
        f"{gains.megabytes:.3g} MB left each owner."
    )
