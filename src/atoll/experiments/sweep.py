"""Run a method over settings and choose the best by validation accuracy."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ..config import NEUTRAL, Config
from ..engine.experiment import Watch
from ..errors import AtollError, unknown
from ..storage import run_reader
from ..storage.run_reader import Run, value
from ..utils.notebook import dataframe, html
from .comparison import Comparison, _folder, _many, _silent, open_compare
from .planning import configs, safe
from .runner import run_all
from .search import MODELS, Axis, Grid, Point, Random, Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---------------------------------------------------------------------------------------------------------------------
# From points to runs and back


def at(config: Config, point: Point) -> Config:
    """The configuration at a point: options of the command line by their names, settings of the method by theirs."""
    options = {f.name for f in fields(Config)} - NEUTRAL - {"settings", "terms", "method", "seed"}
    plain = {name: v for name, v in point.items() if name in options}
    settings = config.settings | {name: v for name, v in point.items() if name not in options}
    return replace(config, **plain, settings=settings)  # type: ignore[arg-type]


def folder(root: Path, point: Point, seed: int) -> Path:
    """The directory of a run; names are cut to a length that file systems take, and a mark keeps them apart."""
    words = ",".join(f"{name}={v}" for name, v in point.items())
    return root / f"{safe(words)}-{sha256(words.encode()).hexdigest()[:6]}-seed{seed}"


@dataclass(frozen=True)
class Trial:
    """What came of a point: means over seeds, in percent, with their standard deviations."""

    point: Point
    val: float
    test: float
    val_std: float
    test_std: float
    finished: bool

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def trial_of(point: Point, runs: Sequence[Run], model: str) -> Trial:
    """Of each seed the round with the best validation accuracy; NaN where a run has none."""
    val = [_percent(run, f"{model}.metrics.best_by_val.val") for run in runs]
    test = [_percent(run, f"{model}.best_by_val") for run in runs]
    done = all(run.status == "finished" for run in runs)
    return Trial(point, statistics.fmean(val), statistics.fmean(test), _spread(val), _spread(test), done)


def _percent(run: Run, dotted: str) -> float:
    number = value(run.summary, dotted)
    return math.nan if number is None else 100 * number


def _spread(numbers: Sequence[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else math.nan


def best(results: Sequence[Trial]) -> Trial:
    """The highest validation accuracy among finished runs; the first one wins a tie."""
    judged = [t for t in results if t.finished and not math.isnan(t.val)]
    if not judged:
        raise AtollError(
            "No point can be chosen: no run finished with a validation accuracy. "
            "Take a --split with validation rows, such as client_811."
        )
    return max(judged, key=lambda t: t.val)


def is_matrix(points: Sequence[Mapping[str, str]]) -> bool:
    """Whether the points are all combinations of two settings, so that a matrix shows them best."""
    names = list(points[0])
    if len(names) != 2:
        return False
    sides = [len({p[name] for p in points}) for name in names]
    return min(sides) > 1 and sides[0] * sides[1] == len(points)


Follow = Callable[[Config], Watch]  # who watches a run


class SweepPlan(NamedTuple):
    """What all points share, and where they go."""

    base: Config
    seeds: tuple[int, ...]
    root: Path
    model: str  # whose validation accuracy decides
    resume: bool = False
    force: bool = False


class SweepOutcome(NamedTuple):
    results: list[Trial]
    folders: list[Path]  # of all runs


def run_search(search: Search, request: SweepPlan, follow: Follow) -> SweepOutcome:
    """Run every point that the search asks for, each once, and tell it how they did."""
    results: dict[tuple[str, ...], Trial] = {}  # by the values of the point: a search may come back to one
    for points in search.batches():
        fresh = {tuple(p.values()): p for p in points if tuple(p.values()) not in results}
        _run(fresh.values(), request, follow)
        for values, p in fresh.items():
            results[values] = trial_of(p, [run_reader.load(path) for path in _folders(p, request)], request.model)
        search.learn(points, [results[tuple(p.values())].val for p in points])
    return SweepOutcome(list(results.values()), [path for t in results.values() for path in _folders(t.point, request)])


def document(results: Sequence[Trial], model: str) -> dict[str, Any]:
    """What sweep.json holds."""
    tells = {"best": best(results).to_json(), "tried": [t.to_json() for t in results]}
    return {"by": f"validation accuracy, {model}", **tells}


def _run(points: Iterable[Point], request: SweepPlan, follow: Follow) -> None:
    base = request.base
    planned = [
        replace(at(base, p), seed=seed, out=str(folder(request.root, p, seed)))
        for p in points
        for seed in request.seeds
    ]
    if planned:
        run_all(planned, [follow(c) for c in planned], request.resume, request.force, base.workers or 1)


def _folders(point: Point, request: SweepPlan) -> Iterator[Path]:
    return (folder(request.root, point, seed) for seed in request.seeds)


@dataclass(frozen=True, repr=False)
class Sweep:
    """The points of a search; validation accuracy decides which is best."""

    tried: tuple[Trial, ...]
    model: str  # whose accuracy decides: personal or generic
    comparison: Comparison  # of all runs

    @property
    def best(self) -> Trial:
        return best(self.tried)

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={v}" for name, v in self.best.point.items())
        told = f"validation {self.best.val:.2f} %, test {self.best.test:.2f} %"
        return f"<Sweep over {_many(len(self.tried), 'point')}: best {words} ({told})>"

    def _repr_html_(self) -> str:
        columns = [*self.tried[0].point, "val", "test"]
        ranked = sorted(self.tried, key=lambda t: -t.val)
        return html(repr(self)[1:-1], columns, [[*t.point.values(), f"{t.val:.2f}", f"{t.test:.2f}"] for t in ranked])

    def to_table(self) -> pa.Table:
        """One row for each point."""
        told = document(self.tried, self.model)["tried"]
        return pa.Table.from_pylist([{**t["point"], **{k: v for k, v in t.items() if k != "point"}} for t in told])

    def to_dataframe(self) -> Any:
        """``to_table`` for pandas."""
        return dataframe(self.to_table())

    def plot(self, kind: str = "curves") -> "Figure":
        return self.comparison.plot(kind)


def run_sweep(
    method: str,
    grid: Mapping[str, Sequence[Any]],
    data: str = "digits",
    *,
    random: int | None = None,
    by: str = "personal",
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Any,
) -> Sweep:
    """Run a method over settings, such as ``{"lam": [0.1, 1]}``; with ``random``, at so many points drawn of them."""
    if by not in MODELS:
        raise unknown("model to choose by", by, MODELS)
    if not grid:
        raise AtollError("A sweep needs settings and their values, such as {'lam': [0.1, 1]}.")
    base = configs([method], {**options, "data": data})[0]
    axes = [Axis(name, tuple(map(str, values))) for name, values in grid.items()]
    search: Search = Grid(axes) if random is None else Random(axes, random, base.seed)
    with _folder(out) as root:
        request = SweepPlan(base, tuple(seeds) or (base.seed,), root, by, resume, force)
        found = run_search(search, request, lambda config: watch or _silent)
        return Sweep(tuple(found.results), by, open_compare(*found.folders))
