"""Describe the columns of a raw table for users: kinds, values and empty cells."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from ..dataset import Array, Dataset
from .cells import Cells
from .columns import CATEGORY, DATE, EMPTY, NUMBER, TEXT, Column
from .labels import find_respelled

SHOWN = 6  # categories or words


class ColumnFacts(NamedTuple):
    """One column of a table.

    Args:
        name: its name.
        kind: its kind.
        values: the range of numbers and dates, or the first categories.
        empty: number of empty cells.
    """

    name: str
    kind: str
    values: str
    empty: int


def describe_columns(data: Dataset) -> list[ColumnFacts]:
    """Describe the columns of all rows of a data set; none for data without named columns."""
    if data.kind == "text":
        return [ColumnFacts(column.name, TEXT, _some(column, "words"), 0) for column in data.columns]
    x = np.concatenate([data.x_train, data.x_test]) if data.columns else data.x_train
    return [_facts(column, x[:, at]) for at, column in enumerate(data.columns)]


def describe_cells(cells: Sequence[Cells]) -> list[str]:
    """Return a sentence on each kind of column that was inferred, and on empty cells."""
    notes = []
    for kind in (NUMBER, DATE, CATEGORY, EMPTY):
        names = [cell.column.name for cell in cells if cell.column.kind == kind and not cell.declared]
        if names:
            title = {EMPTY: "Columns without a value"}.get(kind, f"Inferred as {kind}")
            notes.append(f"{title}: {', '.join(names)}.")
    for column in (cell.column for cell in cells):
        if pair := find_respelled(column.levels):
            notes.append(
                f"Categories of {column.name} that differ in capitals or spaces alone: {pair[0]!r} and {pair[1]!r}."
            )
    constant = [cell.column.name for cell in cells if _is_constant(cell.values)]
    if constant:
        notes.append(f"Columns with the same value in all rows: {', '.join(constant)}.")
    empty = {cell.column.name: int(np.isnan(cell.values).sum()) for cell in cells}
    gaps = [f"{name} {count}" for name, count in empty.items() if count]
    if gaps:
        notes.append(f"Empty cells, which are filled (--missing): {', '.join(gaps)}.")
    return notes


def _is_constant(values: Array) -> bool:
    known = values[~np.isnan(values)]
    return len(known) > 1 and bool((known == known[0]).all())


def _facts(column: Column, values: Array) -> ColumnFacts:
    known = values[~np.isnan(values)]
    if column.kind == CATEGORY:
        text = _some(column, "categories")
    elif not len(known):
        text = "no value"
    elif column.kind == DATE:
        text = f"{day(known.min())} to {day(known.max())}"
    else:
        text = f"{known.min():g} to {known.max():g}"
    return ColumnFacts(column.name, column.kind, text, len(values) - len(known))


def _some(column: Column, things: str) -> str:
    shown = ", ".join(column.levels[:SHOWN])
    return shown if len(column.levels) <= SHOWN else f"{shown}, ... ({len(column.levels):,} {things})"


def day(days: float) -> str:
    """Return the date that is a number of days after the start of 1970."""
    return (date(1970, 1, 1) + timedelta(days=float(days))).isoformat()
