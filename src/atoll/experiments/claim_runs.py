"""Run a declared experiment: first the search of every method, then the table with the settings that were found."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ..config import from_dict
from ..engine.experiment import Watch
from .claim_records import SEARCH, TABLE, ClaimRun, Record, read_record, record_name, record_of, write_record
from .claims import Claim, ClaimMethod
from .planning import method_config
from .runner import run_cases
from .search import Point
from .trials import config_at

Follow = Callable[[ClaimRun], Watch]


def run_claim(
    claim: Claim,
    records: Path,
    runs: Path,
    follow: Follow,
    workers: int = 1,
    data_dir: str | None = None,
) -> tuple[Mapping[str, Point], list[Record]]:
    """Run what is not yet in the folder of records, and return the chosen settings and all records.

    A run that was interrupted continues; a finished one leaves its record, and its run directory is deleted.

    Args:
        claim: the declared experiment.
        records: folder of the records.
        runs: folder for run directories while they are needed.
        follow: makes the watch of a run.
        workers: runs at the same time.
        data_dir: folder with data sets.
    """
    searched = _finish(claim, plan_search(claim, data_dir), records, runs, follow, workers)
    chosen = choose(claim, searched)
    table = _finish(claim, plan_table(claim, chosen, data_dir), records, runs, follow, workers)
    return chosen, searched + table


def plan_search(claim: Claim, data_dir: str | None = None) -> list[ClaimRun]:
    """Plan one run for each point and search seed of every method that has a search."""
    return [
        _planned(claim, SEARCH, name, point, seed, data_dir)
        for seed in claim.search_seeds
        for name, method in claim.methods.items()
        for point in method.search
    ]


def plan_table(claim: Claim, chosen: Mapping[str, Point], data_dir: str | None = None) -> list[ClaimRun]:
    """Plan one run for each seed and method, seed by seed, so that early stops leave whole seeds."""
    return [
        _planned(claim, TABLE, name, chosen.get(method.like or name, {}), seed, data_dir)
        for seed in claim.seeds
        for name, method in claim.methods.items()
    ]


def choose(claim: Claim, searched: Iterable[Record]) -> dict[str, Point]:
    """Return the point with the best mean validation score of every method that has a search; the first one if tied."""
    found = list(searched)

    def mean(name: str, point: Point) -> float:
        return fmean(r.validation for r in found if (r.method, r.point) == (name, point))

    return {
        name: max(method.search, key=lambda point, name=name: mean(name, point))  # type: ignore[misc]
        for name, method in claim.methods.items()
        if method.search
    }


def finished(planned: Sequence[ClaimRun], records: Path) -> list[Record]:
    """Return the records of those runs that are finished."""
    return [read_record(records / one.file_name) for one in planned if (records / one.file_name).exists()]


def _planned(claim: Claim, part: str, name: str, point: Point, seed: int, data_dir: str | None) -> ClaimRun:
    method = claim.methods[name]
    settings = {**claim.options.get("settings", {}), **method.options.get("settings", {})}
    values = {**claim.options, **method.options, "settings": settings, "seed": seed, "data_dir": data_dir}
    shared = from_dict(values, f"the claim of {claim.paper}")
    config = config_at(method_config(method.run, shared), _own_part(method, point))
    return ClaimRun(part, name, point, config, record_name(claim, part, name, point, seed))


def _own_part(method: ClaimMethod, point: Point) -> Point:
    """Return the settings of a point without those that the method, a variant of another one, fixes itself."""
    fixed = set(method.options.get("settings", {}))
    return {name: value for name, value in point.items() if name not in fixed}


def _finish(
    claim: Claim, planned: Sequence[ClaimRun], records: Path, runs: Path, follow: Follow, workers: int
) -> list[Record]:
    records.mkdir(parents=True, exist_ok=True)
    missing = [one for one in planned if not (records / one.file_name).exists()]
    for start in range(0, len(missing), workers):
        _run_some(claim, missing[start : start + workers], records, runs, follow, workers)
    return finished(planned, records)


def _run_some(
    claim: Claim, planned: Sequence[ClaimRun], records: Path, runs: Path, follow: Follow, workers: int
) -> None:
    """Run as many at a time as there are workers, and write a record for each."""
    by_out = {str(runs / Path(one.file_name).stem): one for one in planned}
    cases = {out: [replace(one.config, out=out)] for out, one in by_out.items()}
    found, _ = run_cases(cases, lambda config: follow(by_out[str(config.out)]), workers)
    for (out, one), run in zip(by_out.items(), found, strict=True):
        write_record(record_of(claim, one, run), records / one.file_name)
        shutil.rmtree(out)
