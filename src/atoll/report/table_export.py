"""Write the comparison table as text for files, with a choice of columns."""

from collections.abc import Iterable, Sequence

from ..errors import unknown
from ..storage.run_reader import Run
from .groups import criterion_of
from .sheets import Sheet
from .table import P_VALUE, cell, columns, rows


def sheet(runs: Iterable[Run], chosen: Sequence[str] = ()) -> Sheet:
    """Return columns as text for a file, with a paired t-test of each method against the best one, over seeds.

    Args:
        runs: the runs.
        chosen: names of columns, such as ``best_by_val``, in their order, under short headings; none: all columns.

    Raises:
        AtollError: there is no such column.
    """
    runs = list(runs)
    criterion_of(runs)
    made = rows(runs)
    title = f"means over seeds ± standard deviation; {P_VALUE}"
    shown = columns(made, untested=True)
    headings = {"seeds": "seeds", **{c.field: c.short if chosen else f"{c.family}: {c.title}" for c in shown}}
    for name in chosen:
        if name not in headings:
            raise unknown("column", name, headings)
    names = list(chosen) or list(headings)
    texts = [{"seeds": str(len(row.seeds)), **{c.field: cell(row, c) for c in shown}} for row in made]
    lines = [[row.name, *(own[name] for name in names)] for row, own in zip(made, texts, strict=True)]
    return Sheet(title, ["method", *(headings[name] for name in names)], lines)
