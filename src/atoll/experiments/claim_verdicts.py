"""Decide a claim from the records of its runs: differences over seeds, verdicts, and the tables that show them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..report.seed_statistics import CONFIDENCE, Difference, Verdict, holm, paired_difference, seeds_needed
from ..report.sheets import Sheet
from ..utils.stats import spread
from .claim_records import SEARCH, TABLE, Record
from .claims import Claim, Pair
from .search import Point


class Decided(NamedTuple):
    """A comparison of a claim over the seeds that both methods have, in percentage points."""

    pair: Pair
    difference: Difference | None  # None: fewer than two common seeds
    corrected: float  # p-value after Holm's correction over all comparisons of the claim; 1 without a difference
    complete: bool  # whether all declared seeds are there
    needed: int | None  # seeds that would decide if mean and spread stayed as they are; None if that cannot be told


def decide(claim: Claim, records: Iterable[Record]) -> list[Decided]:
    """Compare the declared pairs of methods, the claim itself first."""
    scores = by_seed(records)
    found = [paired_difference(scores[pair.better], scores[pair.worse]) for pair in claim.compare]
    known = [d.p for d in found if d is not None]
    corrected = iter(holm(known))
    return [
        Decided(
            pair,
            d,
            1.0 if d is None else next(corrected),
            all(seed in scores[name] for seed in claim.seeds for name in pair),
            _needed(scores[pair.better], scores[pair.worse], d),
        )
        for pair, d in zip(claim.compare, found, strict=True)
    ]


def _needed(ours: Mapping[int, float], theirs: Mapping[int, float], found: Difference | None) -> int | None:
    if found is None or found.verdict is not Verdict.OPEN:
        return None
    return seeds_needed([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def by_seed(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Return the measure of the table's runs in percent, by method and seed."""
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        if record.part == TABLE:
            scores[record.method][record.seed] = 100 * record.test
    return scores


def verdict_text(claim: Claim, decided: Decided) -> str:
    """Say in words what was decided; a comparison with fewer seeds than declared is not decided."""
    found = decided.difference
    if found is None or not decided.complete:
        have = 0 if found is None else found.seeds
        return f"not yet run: {have} of {len(claim.seeds)} seeds"
    if found.verdict is not Verdict.OPEN:
        kept = decided.corrected <= 1 - CONFIDENCE
        return str(found.verdict) if kept else "not decided after the correction for the number of comparisons"
    bound = max(abs(found.low), abs(found.high))
    if bound < claim.effect:
        return f"not decided (±{found.margin:.2g}); at most {bound:.2g}, less than the effect of interest"
    seeds = f"; about {decided.needed} seeds would decide" if decided.needed and decided.needed < 1000 else ""
    return f"not decided (±{found.margin:.2g}){seeds}"


def comparison_sheet(claim: Claim, found: Sequence[Decided]) -> Sheet:
    """Make the table of comparisons."""
    rows = []
    for one in found:
        d = one.difference
        numbers = (
            ["–"] * 3
            if d is None or not one.complete
            else [f"{d.mean:+.2f}", f"{d.low:+.2f} to {d.high:+.2f}", f"{one.corrected:.2g}"]
        )  # fmt: skip
        rows.append([str(one.pair), *numbers, str(d.seeds if d else 0), verdict_text(claim, one)])
    columns = ["comparison", "points", "95 % interval", "p (Holm)", "seeds", "verdict"]
    return Sheet("Differences, paired by seed", columns, rows)


def score_sheet(claim: Claim, records: Iterable[Record], chosen: Mapping[str, Point]) -> Sheet:
    """Make the table of scores: mean and standard deviation over seeds, and the settings that the search chose."""
    scores = by_seed(records)
    rows = []
    for name, method in claim.methods.items():
        values = list(scores[name].values())
        shown = "–"
        if values:
            stat = spread(values)
            shown = f"{stat.mean:.2f}" + ("" if stat.std is None else f" ± {stat.std:.2f}")
        found = chosen.get(method.like or name, {})
        fixed = {setting: str(value) for setting, value in method.options.get("settings", {}).items()}
        rows.append([name, f"`{method.run}`", shown, str(len(values)), _words({**found, **fixed})])
    return Sheet("Test accuracy, %", ["method", "run", "mean ± deviation", "seeds", "settings"], rows)


def search_sheet(records: Iterable[Record], chosen: Mapping[str, Point]) -> Sheet:
    """Make the table of the search: validation and test score of every point."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.part == SEARCH:
            found[record.method, _words(record.point)].append(record)
    rows = []
    for (name, words), tried in found.items():
        mark = " (chosen)" if tried[0].point == chosen.get(name) else ""
        means = [100 * sum(getattr(r, side) for r in tried) / len(tried) for side in ("validation", "test")]
        rows.append([name, words + mark, *(f"{mean:.2f}" for mean in means)])
    return Sheet("The search", ["method", "tried", "validation, %", "test, %"], rows)


def _words(point: Point) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in point.items()) or "defaults"
