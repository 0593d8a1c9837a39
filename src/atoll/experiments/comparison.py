"""Compare methods: run them on the same clients, and keep report and figures beside their directories."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from ..config import Config
from ..config.option_types import RunOptions
from ..engine.experiment import Watch
from ..engine.python_parts import Methods, Metrics, Networks, PythonParts, read_parts
from ..report import table
from ..report.groups import groups
from ..storage import run_reader
from ..storage.group_dir import check_free_for_group, check_keeps_runs
from ..storage.run_reader import Run
from ..utils.notebook import dataframe, html, notebook_bars
from ..utils.stats import Stat
from .planning import assign_directories, plan_configs
from .runner import run_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparison:
    """Finished runs by method: means over seeds, the best first."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[table.Row]:
        return table.method_rows(groups(self.runs))

    def __repr__(self) -> str:
        rows = self.rows
        seeds = max(len(row.seeds) for row in rows)
        form = rows[0].criterion
        lead = table.format_score(rows[0].best_by_val, form) + (" %" if form.percent else f" {form.title}")
        data = ", ".join(dict.fromkeys(str(run.summary["data"]) for run in self.runs))
        return f"<Comparison on {data}: {count(len(rows), 'method')}, {count(seeds, 'seed')}; {rows[0].name} {lead}>"

    def _repr_html_(self) -> str:
        rows = table.rows(self.runs)
        shown = [column for column in table.columns(rows) if column.printed]
        cells = [[row.name, len(row.seeds), *(table.cell(row, column) for column in shown)] for row in rows]
        return html(repr(self)[1:-1], ("method", "n", *(column.short for column in shown)), cells)

    def to_table(self) -> pa.Table:
        """Return one row for each method; shares are from 0 to 1, with their deviations over seeds beside them."""
        return pa.Table.from_pylist([_flatten(row) for row in self.rows])

    def to_dataframe(self) -> Any:
        """Return ``to_table`` as a pandas data frame."""
        return dataframe(self.to_table())

    def plot(self, kind: str = "curves") -> "Figure":
        """Draw scores by round (``curves``), by client (``boxes``) or by bytes (``bytes``)."""
        from ..report.figures import draw  # takes long to import

        return draw(kind, self.runs)


def run_compare(
    methods: Methods,
    data: Any = "digits",
    models: Networks = (),
    *,
    metric: Metrics = (),
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Run several methods on the same clients, like ``atoll compare``.

    Args:
        methods: names, with variants, settings and regularisers as on the command line: ``"fedprox:mu=1"``,
            ``"fedavg+dw:mu=0.1"``; methods; or ``["all"]``. ``{"mine": Ditto(lam=0.1)}`` names methods.
        data: a name or path, or anything that ``atoll.make_dataset`` takes.
        models: names of architectures, or networks.
        metric: further metrics: names, or functions of logits and labels.
        seeds: one run of every method for each; without any, the seed of the options.
        out: directory for everything that ``atoll compare`` writes: runs, report.html and figures. Without it nothing
            is left on the disk.
        resume: continue what was interrupted in ``out``.
        force: replace the runs that are in ``out``.
        watch: called with the number of rounds done by a run and, after an evaluation, its metrics.
        options: the options of the command line, such as ``clients=20``; ``workers`` runs that many at the same time,
            if nothing is given as an object.

    Returns:
        The finished runs, ranked by personal score.

    Raises:
        AtollError: before anything runs, if an option is wrong or a method does not fit.

    Example:
        >>> found = atoll.run_compare(["local", "fedavg"], "digits", seeds=[0, 1], rounds=3, out="runs/two")
        >>> found.to_dataframe()
    """
    chosen: Methods = [methods] if isinstance(methods, str) else methods
    parts, names, entries = read_parts(chosen, data, models, metric, options)
    planned = plan_configs(names, {**options, **entries}, seeds, parts)
    with folder_for(out) as root:
        placed = assign_directories(planned, root)
        labels = {f"{c.label} seed {c.seed}": c.rounds for c in placed}
        with notebook_bars({} if watch else labels) as bars:
            watches = [watch] * len(placed) if watch else bars
            return run_placed(placed, watches, None if out is None else root, resume, force, parts)


def run_placed(
    placed: Sequence[Config],
    watches: Sequence[Watch],
    root: Path | None,
    resume: bool = False,
    force: bool = False,
    parts: PythonParts = PythonParts(),
) -> Comparison:
    """Run configurations that have directories, and write the report and the figures of all into ``root``, if given."""
    if root is not None:
        check_free_for_group(root, resume or force)
        if resume:
            check_keeps_runs(root, placed)
    outcome = run_all(placed, watches, resume, force, placed[0].workers or 1, root, parts)
    if root is not None:
        from ..report import figures, html  # takes long to import
        from ..report.figures.base import by_case

        html.write_runs(outcome.runs, root / "report.html")
        figures.write(figures.default_figures(by_case(outcome.runs)), root / "figures")
    return Comparison(tuple(outcome.runs), tuple(outcome.notes))


def open_compare(*folders: str | Path) -> Comparison:
    """Read finished runs from their directories, or from directories of runs.

    Example:
        >>> atoll.open_compare("runs/two").plot("boxes")
    """
    return Comparison(
        tuple(run_reader.load(folder) for folder in run_reader.find([Path(folder) for folder in folders]))
    )


@contextmanager
def folder_for(out: str | Path | None) -> Iterator[Path]:
    """Give the folder that runs are written to: ``out``, or one that is deleted at the end."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)


def _flatten(row: table.Row) -> dict[str, object]:
    flat: dict[str, object] = {"method": row.name, "seeds": len(row.seeds), "remark": row.remark}
    for column in table.COLUMNS:
        entry = getattr(row, column.field)
        score = column.field != "p" and column.family in (table.PERSONAL, table.GENERIC)
        scale = row.criterion.scale if score else 1.0
        flat[column.field] = entry.mean / scale if isinstance(entry, Stat) else entry
        if score:
            flat[f"{column.field}_std"] = (
                entry.std / scale if isinstance(entry, Stat) and entry.std is not None else None
            )
    return flat | {name: stat and stat.mean for name, stat in row.own.items()}


def count(n: int, noun: str) -> str:
    """Return a number with its noun, such as ``"2 seeds"``."""
    return f"{n} {noun}{'s' * (n != 1)}"
