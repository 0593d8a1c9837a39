"""Tell what owners of data gain over training alone: how many gain or lose, by how much, and what leaves them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..storage.run_reader import Run, value
from .groups import Group
from .wording import size

ALONE = "local"  # the method by which every owner trains alone
DRAWS = 2000  # bootstrap resamples of owners


class OwnerGains(NamedTuple):
    """What a method gives owners over training alone, of shares in percentage points.

    Args:
        method: the method.
        by_owner: the gain of each owner that both methods have scored, the smallest first; above 0 is better.
        low, high: ends of the 95 % interval of the mean, over resampled owners.
        p: two-sided p-value of Wilcoxon's signed-rank test over owners; 1 if no owner gains or loses.
        sent: bytes that left an owner during the run, on average.
    """

    method: str
    by_owner: Mapping[str, float]
    low: float
    high: float
    p: float
    sent: float

    @property
    def owners(self) -> int:
        """Number of owners."""
        return len(self.by_owner)

    @property
    def gain(self) -> int:
        """Number of owners with a better score than alone."""
        return sum(gap > 0 for gap in self.by_owner.values())

    @property
    def lose(self) -> int:
        """Number of owners with a worse score than alone."""
        return sum(gap < 0 for gap in self.by_owner.values())

    @property
    def mean(self) -> float:
        """Mean gain over owners."""
        return float(np.mean(list(self.by_owner.values())))


def compare_with_alone(found: Sequence[Group]) -> list[OwnerGains]:
    """Compare every method with training alone, the first groups first; empty if no run trained alone."""
    alone = next((group for group in found if group.runs[0].label == ALONE), None)
    if alone is None:
        return []
    made = [_gains(group, alone) for group in found if group is not alone]
    return [gains for gains in made if gains is not None]


def _gains(group: Group, alone: Group) -> OwnerGains | None:
    others = {run.seed: run for run in alone.runs}
    gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in group.runs:
        if run.seed in others:
            mine, other = run.client_scores(), others[run.seed].client_scores()
            for i in mine.keys() & other.keys():
                gaps[_owner(run, i)].append(mine[i] - other[i])
    if not gaps:
        return None
    form = group.criterion
    sign = form.scale if form.higher else -form.scale
    means = {_name(*owner): round(sign * float(np.mean(own)), 9) for owner, own in sorted(gaps.items())}
    found = np.array(list(means.values()))
    rng = np.random.default_rng(0)
    drawn = found[rng.integers(0, len(found), (DRAWS, len(found)))].mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    up = [(value(run.summary, "bytes.up") or 0.0) / int(run.summary["clients"]) for run in group.runs]
    return OwnerGains(
        group.name,
        dict(sorted(means.items(), key=lambda item: item[1])),
        float(low),
        float(high),
        _signed_rank_p(found) if found.any() else 1.0,
        float(np.mean(up)),
    )


def _owner(run: Run, client: str) -> tuple[str, str]:
    """Return seed and client of an owner; natural clients are the same under every seed, which is left empty."""
    return ("" if run.summary["partition"] == "natural" else str(run.seed), client)


def _name(seed: str, client: str) -> str:
    return f"{client} of seed {seed}" if seed else client


def describe_gains(gains: OwnerGains, percent: bool) -> str:
    """Return what owners gain in one sentence."""
    unit = " points" if percent else ""
    interval = f"95 % interval {gains.low:+.2f} to {gains.high:+.2f}, p {format_p(gains.p)}"
    few = "" if gains.owners > 9 else "; few owners, so look at each of them"
    return (
        f"With {gains.method}, {gains.gain} of {gains.owners} owners gain over training alone and {gains.lose} lose: "
        f"{gains.mean:+.2f}{unit} on average ({interval}{few}). "
        f"{size(gains.sent)} left each owner."
    )


def format_p(p: float) -> str:
    """Return a p-value with two digits, or its bound if it is very small."""
    return "below 0.0001" if p < 1e-4 else f"{p:.2g}"


def _signed_rank_p(gains: np.ndarray) -> float:
    """Return the p-value of Wilcoxon's signed-rank test."""
    from scipy import stats  # takes a second to import, which a run does without until it is finished

    return float(stats.wilcoxon(gains).pvalue)
