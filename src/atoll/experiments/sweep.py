"""Run a method over settings and choose the best by validation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import pyarrow as pa

from ..config import Config
from ..config.option_types import RunOptions
from ..core.method import AnyMethod
from ..engine.experiment import Watch
from ..engine.python_parts import Metrics, Networks, PythonParts, read_parts
from ..errors import AtollError, unknown
from ..report.sheets import Sheet, as_csv
from ..storage.group_dir import check_free_for_group, check_keeps_runs
from ..storage.run_reader import Run
from ..utils.files import to_json, write_whole
from ..utils.notebook import dataframe, html
from ..utils.progress import silent
from .comparison import Comparison, count, folder_for
from .planning import plan_configs
from .runner import run_all
from .search import MODELS, Axis, Grid, Point, Random, Search
from .trials import Trial, best_trial, config_at, document, run_directory, trial_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Follow = Callable[[Config], Watch]  # makes the watch of a run


class SweepPlan(NamedTuple):
    """The configuration that all points share, and the directory of their runs."""

    base: Config
    seeds: tuple[int, ...]
    root: Path
    model: str  # whose validation score decides
    resume: bool = False
    force: bool = False
    parts: PythonParts = PythonParts()  # what was given as objects


class SweepOutcome(NamedTuple):
    """The points that were tried, and the runs of all of them."""

    results: list[Trial]
    runs: list[Run]


def run_search(search: Search, request: SweepPlan, follow: Follow) -> SweepOutcome:
    """Run every point that the search asks for, each once, and pass their validation scores to the search."""
    check_free_for_group(request.root, request.resume or request.force)
    if request.resume:
        check_keeps_runs(request.root, ())  # A sweep has no plan: a directory with one belongs to another command.
    results: dict[tuple[str, ...], Trial] = {}  # by the values of the point: a search may come back to one
    runs: list[Run] = []
    for points in search.batches():
        fresh = {tuple(p.values()): p for p in points if tuple(p.values()) not in results}
        made = _run(list(fresh.values()), request, follow)
        for values, point, members in zip(fresh, fresh.values(), made, strict=True):
            results[values] = trial_of(point, members, request.model)
            runs += members
        search.tell(points, [_higher_is_better(results[tuple(p.values())]) for p in points])
    return SweepOutcome(list(results.values()), runs)


def _higher_is_better(trial: Trial) -> float:
    """Return the validation score as searches want it, which maximise."""
    return trial.val if trial.criterion.higher else -trial.val


def _run(points: Sequence[Point], request: SweepPlan, follow: Follow) -> list[list[Run]]:
    """Run points with all seeds; return the runs of each point."""
    base, seeds = request.base, request.seeds
    planned = [
        replace(config_at(base, p), seed=seed, out=str(run_directory(request.root, p, seed)))
        for p in points
        for seed in seeds
    ]
    if not planned:
        return []
    watches = [follow(c) for c in planned]
    runs = run_all(planned, watches, request.resume, request.force, base.workers or 1, parts=request.parts).runs
    return [runs[i : i + len(seeds)] for i in range(0, len(runs), len(seeds))]


@dataclass(frozen=True, repr=False)
class Sweep:
    """The points of a search; validation decides which is best."""

    tried: tuple[Trial, ...]
    model: str  # whose score decides: personal or generic
    comparison: Comparison  # of all runs

    @property
    def best(self) -> Trial:
        """The point with the best validation score."""
        return best_trial(self.tried)

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={v}" for name, v in self.best.point.items())
        score, unit = self.best.criterion, " %" if self.best.criterion.percent else ""
        scores = f"validation {score.cell(self.best.val)}{unit}, test {score.cell(self.best.test)}{unit}"
        return f"<Sweep over {count(len(self.tried), 'point')}: best {words} ({scores})>"

    def _repr_html_(self) -> str:
        columns = [*self.tried[0].point, "val", "test"]
        score = self.tried[0].criterion
        ranked = sorted(self.tried, key=lambda t: score.rank(t.val))
        cells = [[*t.point.values(), score.cell(t.val), score.cell(t.test)] for t in ranked]
        return html(repr(self)[1:-1], columns, cells)

    def to_table(self) -> pa.Table:
        """Return one row for each point."""
        return pa.Table.from_pylist([{**t.point, **t.scores()} for t in self.tried])

    def to_dataframe(self) -> Any:
        """Return ``to_table`` as a pandas data frame."""
        return dataframe(self.to_table())

    def plot(self, kind: str = "settings") -> "Figure":
        """Draw validation and test scores against the settings (``settings``), or all runs as ``Comparison.plot``."""
        if kind != "settings":
            return self.comparison.plot(kind)
        from .sweep_figure import draw_settings  # takes long to import

        return draw_settings(self.tried, self.model)

    def write(self, root: Path) -> None:
        """Write report.html, sweep.json and sweep.csv."""
        from ..report import html  # takes long to import

        html.write_runs(self.comparison.runs, root / "report.html")
        write_whole(root / "sweep.json", (to_json(document(self.tried, self.model), indent=1) + "\n").encode())
        measured = ("val", "val_std", "test", "test_std", "finished")
        rows = [[*map(str, t.point.values()), *(str(getattr(t, name)) for name in measured)] for t in self.tried]
        write_whole(root / "sweep.csv", as_csv(Sheet("", [*self.tried[0].point, *measured], rows)).encode())


def run_sweep(
    method: str | AnyMethod,
    grid: Mapping[str, Sequence[object]],
    data: Any = "digits",
    models: Networks = (),
    *,
    metric: Metrics = (),
    random: int | None = None,
    by: str = "personal",
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Unpack[RunOptions],
) -> Sweep:
    """Run a method over settings and choose by validation, like ``atoll sweep``.

    Args:
        method: a name, with a variant, settings and regularisers as on the command line, or a method.
        grid: settings of the method, or options of a run, and their values, such as ``{"lam": [0.1, 1]}``.
        data: a name or path, or anything that ``atoll.make_dataset`` takes.
        models: names of architectures, or networks.
        metric: further metrics: names, or functions of logits and labels.
        random: try this many points drawn at random, not all combinations.
        by: the model whose validation score decides: ``"personal"`` or ``"generic"``.
        seeds: one run of every point for each; without any, the seed of the options.
        out: directory for everything that ``atoll sweep`` writes: runs, report.html, sweep.json and sweep.csv. Without
            it nothing is left on the disk.
        resume: continue what was interrupted in ``out``.
        force: replace the runs that are in ``out``.
        watch: called with the number of rounds done by a run and, after an evaluation, its metrics.
        options: the options of the command line, such as ``clients=20``.

    Returns:
        The points that were tried, and the best of them.

    Raises:
        AtollError: if an option is wrong, or, with ``out``, if no run has a validation accuracy to choose by.

    Example:
        >>> found = atoll.run_sweep("ditto", {"lam": [0.1, 1]}, "digits", rounds=3)
        >>> found.best.point
    """
    if by not in MODELS:
        raise unknown("model to choose by", by, MODELS)
    if not grid:
        raise AtollError("A sweep needs settings and their values, such as {'lam': [0.1, 1]}.")
    parts, names, entries = read_parts([method], data, models, metric, options)
    base = plan_configs(names, {**options, **entries}, parts=parts)[0]
    axes = [Axis(name, tuple(map(str, values))) for name, values in grid.items()]
    search: Search = Grid(axes) if random is None else Random(axes, random, base.seed)
    with folder_for(out) as root:
        request = SweepPlan(base, tuple(seeds) or (base.seed,), root, by, resume, force, parts)
        found = _sweep(run_search(search, request, lambda config: watch or silent), by)
    if out is not None:
        found.write(root)
    return found


def run_plan(search: Search, request: SweepPlan, follow: Follow) -> Sweep:
    """Run a search, and write report.html, sweep.json and sweep.csv into the root of the plan."""
    found = _sweep(run_search(search, request, follow), request.model)
    found.write(request.root)
    return found


def _sweep(found: SweepOutcome, model: str) -> Sweep:
    return Sweep(tuple(found.results), model, Comparison(tuple(found.runs)))
