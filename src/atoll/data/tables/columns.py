"""Define the columns of raw rows: names, kinds, and the names that codes stand for.

Raw rows of a table are float64 ``[N, columns]``. A cell holds a number, the days since 1970 of a date, or the position
of a category in the levels of its column; an empty cell is NaN. Raw rows of texts are int64 ``[N, length]``: 0 is
padding, and 2 + i stands for word i of the levels.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import AtollError

Array = NDArray[Any]  # not imported from the module of data sets, which imports this one

NUMBER, DATE, CATEGORY, TEXT, EMPTY = "number", "date", "category", "text", "empty"
KINDS = (NUMBER, DATE, CATEGORY, TEXT)
LARGEST = float(np.finfo(np.float32).max)  # that models can compute with
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2

Bounds = tuple[float, float]  # the least and the largest number that is possible


@dataclass(frozen=True)
class Column:
    """One column of raw rows.

    Args:
        name: its name in files.
        kind: ``number``, ``date``, ``category`` or ``text``; ``empty`` if no cell has a value and no kind is declared.
        levels: names that codes stand for: categories, or words.
        fixed: whether the levels are declared, so that sites need not agree on them.
        bounds: declared bounds of numbers, or of dates as days since 1970; only differential privacy needs them.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    fixed: bool = False
    bounds: Bounds | None = None

    @property
    def is_number(self) -> bool:
        """Return True for columns whose cells are numbers, so that means can be taken."""
        return self.kind in (NUMBER, DATE, EMPTY)


def merge_columns(parts: Sequence[tuple[str, Sequence[Column]]], own_columns: bool = False) -> tuple[Column, ...]:
    """Return the columns of several files or sites: kinds that agree, all levels.

    Args:
        parts: the name of each file or site, and its columns.
        own_columns: whether some of them may lack columns.

    Raises:
        AtollError: a column has two kinds, or is missing somewhere.
    """
    merged: dict[str, Column] = {}
    for where, columns in parts:
        for column in columns:
            known = merged.get(column.name)
            merged[column.name] = column if known is None else _merged(where, known, column)
    for where, columns in () if own_columns else parts:
        lacking = merged.keys() - {column.name for column in columns}
        for name in (name for name in merged if name in lacking):
            has = next(other for other, own in parts if name in {column.name for column in own})
            raise AtollError(
                f"{where} has no column {name!r}, which {has} has. Give all the same columns, or use --columns own."
            )
    return tuple(merged.values())


def _merged(where: str, one: Column, other: Column) -> Column:
    if EMPTY in (one.kind, other.kind):
        return other if one.kind == EMPTY else one
    if one.kind != other.kind:
        raise AtollError(
            f"Column {one.name!r} is a {other.kind} in {where} and a {one.kind} elsewhere. Declare its kind in a "
            "schema file, or correct the values."
        )
    if one.fixed != other.fixed or (one.fixed and one.levels != other.levels):
        raise AtollError(
            f"Column {one.name!r} has other categories in the schema of {where}. Use one schema everywhere."
        )
    if one.bounds != other.bounds:
        raise AtollError(f"Column {one.name!r} has other bounds in the schema of {where}. Use one schema everywhere.")
    return one if one.fixed else replace(one, levels=tuple(sorted({*one.levels, *other.levels})))


def column_from_json(values: Mapping[str, Any]) -> Column:
    """Return a column from the plain values of its fields."""
    bounds = values.get("bounds")
    return Column(
        **{**values, "levels": tuple(values["levels"]), "bounds": bounds and (float(bounds[0]), float(bounds[1]))}
    )


def read_bounds(values: object) -> Bounds | None:
    """Return bounds from plain values that another machine sent.

    Raises:
        ValueError: they are no two finite numbers in their order.
    """
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 2 or not all(type(v) in (int, float) for v in values):
        raise ValueError("bounds are no two numbers")
    low, high = float(values[0]), float(values[1])
    if not -LARGEST <= low < high <= LARGEST:
        raise ValueError(f"bounds are {low} and {high}")
    return low, high


def recode(
    x: Array,
    columns: Sequence[Column],
    wanted: Sequence[Column],
    where: str = "The table",
    lacking: Collection[str] = (),
) -> Array:
    """Return raw rows with the columns, their order and the codes of ``wanted``; unknown categories are empty cells.

    Args:
        x: raw rows.
        columns: their columns.
        wanted: the columns of the result.
        where: name of the rows in messages.
        lacking: names of wanted columns that may be missing, whose cells are then empty.

    Raises:
        AtollError: a wanted column is missing, or has another kind.
    """
    own = {column.name: at for at, column in enumerate(columns)}
    if tuple(columns) == tuple(wanted):
        return x
    if wanted and wanted[0].kind == TEXT:
        return _recode_words(x, columns[0].levels, wanted[0].levels)
    made = np.full((len(x), len(wanted)), np.nan)
    for at, column in enumerate(wanted):
        if column.name not in own and column.name in lacking:
            continue
        if column.name not in own:
            raise AtollError(f"{where} has no column {column.name!r}. Add it; cells may be empty.")
        found = columns[own[column.name]]
        values = x[:, own[column.name]]
        if found.kind == EMPTY:
            continue
        if found.is_number != column.is_number:
            raise AtollError(f"{where}: column {column.name!r} is a {found.kind}, but {column.kind} is expected.")
        made[:, at] = values if column.is_number else _recode_levels(values, found.levels, column.levels)
    return made


def _recode_levels(values: Array, levels: Sequence[str], wanted: Sequence[str]) -> Array:
    code = {level: float(i) for i, level in enumerate(wanted)}
    table = np.array([*(code.get(level, np.nan) for level in levels), np.nan])
    known = ~np.isnan(values)
    return table[np.where(known, values, len(levels)).astype(np.int64)]


def _recode_words(x: Array, levels: Sequence[str], wanted: Sequence[str]) -> Array:
    code = {word: i for i, word in enumerate(wanted, start=FIRST_WORD)}
    table = np.array([PADDING, UNKNOWN, *(code.get(word, UNKNOWN) for word in levels)], dtype=np.int64)
    return table[x]
