"""Several runs from Python: methods side by side, and searches over settings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..engine.experiment import Watch
from ..report import table
from ..storage import run_reader
from ..storage.run_reader import Run
from ..utils.notebook import dataframe, html
from ..utils.stats import Stat
from .planning import configs, place
from .runner import run_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparison:
    """Finished runs, by method: means over seeds, the best first."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[table.Row]:
        return table.rows(self.runs)

    def __repr__(self) -> str:
        rows = self.rows
        seeds = max(len(row.seeds) for row in rows)
        lead = table.accuracy(rows[0].best_by_val)
        data = ", ".join(dict.fromkeys(str(run.summary["data"]) for run in self.runs))
        return f"<Comparison on {data}: {_many(len(rows), 'method')}, {_many(seeds, 'seed')}; {rows[0].name} {lead} %>"

    def _repr_html_(self) -> str:
        rows = self.rows
        shown = [column for column in table.columns(rows) if column.printed]
        cells = [[row.name, len(row.seeds), *(table.cell(row, column) for column in shown)] for row in rows]
        return html(repr(self)[1:-1], ("method", "n", *(column.short for column in shown)), cells)

    def to_table(self) -> pa.Table:
        """One row for each method; accuracies in percent, with their deviations over seeds beside them."""
        return pa.Table.from_pylist([_flat(row) for row in self.rows])

    def to_dataframe(self) -> Any:
        """``to_table`` for pandas."""
        return dataframe(self.to_table())

    def plot(self, kind: str = "curves") -> "Figure":
        """Accuracy by round (``curves``), by client (``boxes``) or by bytes (``bytes``)."""
        from ..report.figures import draw  # takes long to import

        return draw(kind, self.runs)


def run_compare(
    methods: Sequence[str],
    data: str = "digits",
    *,
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on the same clients; ``options`` are those of the command line.

    With ``out`` every run has a directory there; without it nothing is left on the disk.
    """
    planned = configs([methods] if isinstance(methods, str) else methods, {**options, "data": data}, seeds)
    with _folder(out) as root:
        placed = place(planned, root)
        notes = run_all(placed, [watch or _silent] * len(placed), resume, force, placed[0].workers or 1)
        return Comparison(tuple(run_reader.load(Path(str(c.out))) for c in placed), tuple(notes))


def open_compare(*folders: str | Path) -> Comparison:
    """Finished runs from their directories, or from directories of such."""
    return Comparison(
        tuple(run_reader.load(folder) for folder in run_reader.find([Path(folder) for folder in folders]))
    )


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    """Where runs are written: a folder that stays, or one that goes when they have been read."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory() as passing:
        yield Path(passing)


def _silent(done: int, line: Any) -> None:
    """Nobody asked."""


def _flat(row: table.Row) -> dict[str, Any]:
    told: dict[str, Any] = {"method": row.name, "seeds": len(row.seeds), "remark": row.remark}
    for column in table.COLUMNS:
        entry = getattr(row, column.field)
        told[column.field] = entry.mean if isinstance(entry, Stat) else entry
        if column.family in (table.PERSONAL, table.GENERIC):
            told[f"{column.field}_std"] = entry.std if isinstance(entry, Stat) else None
    return told | {name: stat and stat.mean for name, stat in row.own.items()}


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
