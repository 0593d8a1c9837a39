"""A search carried out: its points as runs in directories, and what came of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .compare import run_all
from .config import Config
from .experiment import Watch
from .report import runs
from .sweep import Point, Search, Tried, at, best, folder, tried

Follow = Callable[[Config], Watch]  # who watches a run


class Request(NamedTuple):
    """What all points share, and where they go."""

    base: Config
    seeds: tuple[int, ...]
    root: Path
    model: str  # whose validation accuracy decides
    resume: bool = False
    force: bool = False


class Found(NamedTuple):
    results: list[Tried]
    folders: list[Path]  # of all runs


def carry_out(search: Search, request: Request, follow: Follow) -> Found:
    """Run every point that the search asks for, each once, and tell it how they did."""
    results: dict[tuple[str, ...], Tried] = {}  # by the values of the point: a search may come back to one
    for points in search.batches():
        fresh = {tuple(p.values()): p for p in points if tuple(p.values()) not in results}
        _run(fresh.values(), request, follow)
        for values, p in fresh.items():
            results[values] = tried(p, [runs.load(path) for path in _folders(p, request)], request.model)
        search.learn(points, [results[tuple(p.values())].val for p in points])
    return Found(list(results.values()), [path for t in results.values() for path in _folders(t.point, request)])


def document(results: Sequence[Tried], model: str) -> dict[str, Any]:
    """What sweep.json holds."""
    tells = {"best": best(results).to_json(), "tried": [t.to_json() for t in results]}
    return {"by": f"validation accuracy, {model}", **tells}


def _run(points: Iterable[Point], request: Request, follow: Follow) -> None:
    base = request.base
    planned = [
        replace(at(base, p), seed=seed, out=str(folder(request.root, p, seed)))
        for p in points
        for seed in request.seeds
    ]
    if planned:
        run_all(planned, [follow(c) for c in planned], request.resume, request.force, base.workers or 1)


def _folders(point: Point, request: Request) -> Iterator[Path]:
    return (folder(request.root, point, seed) for seed in request.seeds)
