"""Describe the columns of a raw table for users: kinds, values and empty cells."""

from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from ..dataset import Array, Dataset
from .columns import CATEGORY, DATE, TEXT, Column

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


def _facts(column: Column, values: Array) -> ColumnFacts:
    known = values[~np.isnan(values)]
    if column.kind == CATEGORY:
        text = _some(column, "categories")
    elif not len(known):
        text = "no value"
    elif column.kind == DATE:
        text = f"{_day(known.min())} to {_day(known.max())}"
    else:
        text = f"{known.min():g} to {known.max():g}"
    return ColumnFacts(column.name, column.kind, text, len(values) - len(known))


def _some(column: Column, things: str) -> str:
    shown = ", ".join(column.levels[:SHOWN])
    return shown if len(column.levels) <= SHOWN else f"{shown}, ... ({len(column.levels):,} {things})"


def _day(days: float) -> str:
    return (date(1970, 1, 1) + timedelta(days=float(days))).isoformat()
