"""Look for what may be a mistake in a table: copies of rows, identifiers, codes for empty cells, unlike units.

Nothing is changed or refused. Each doubt is a sentence for the user, who knows what the table means.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime

import numpy as np

from ..dataset import Array
from .columns import CATEGORY, DATE, NUMBER, Column
from .description import day
from .labels import find_respelled
from .notations import is_number

FEW = 10  # different whole numbers that may be codes of categories
ROWS = 20  # from which on it is no chance that numbers are all different, or that a column follows the label
DIFFERENT = 5  # values beside one that is far from all of them
MOST_OWNERS = 200  # whose values are compared
COMPARED = 10  # cells of an owner whose values are compared
FACTOR = 3  # between values of two owners that have unlike units
GAPS = 25  # times the usual distance between neighbouring values
_BEGINS_WITH_DIGIT = re.compile(r"[-+−<>$€£]?\s*\d")


def describe_doubts(
    x: Array,
    columns: Sequence[Column],
    declared: Collection[str],
    classes: Array | None,
    owners: Array | None,
    find: Callable[[int], str],
) -> list[str]:
    """Return a sentence on each thing in a table that may be a mistake.

    Args:
        x: raw rows.
        columns: their columns.
        declared: names of columns whose kind a schema names.
        classes: the label of each row; None if labels are no classes.
        owners: the owner of each row, if rows have owners.
        find: returns the place of a row in its file.
    """
    inferred = [(column, x[:, at]) for at, column in enumerate(columns) if column.name not in declared]
    numbers = [(column.name, _known(values)) for column, values in inferred if column.kind == NUMBER]
    whole = [(name, known) for name, known in numbers if len(known) and bool((known == np.floor(known)).all())]
    lists = {
        "Columns with a different whole number in each row, as identifiers have; '?ignore=' leaves them out": [
            name for name, known in whole if ROWS <= len(known) == len(np.unique(known))
        ],
        "Few different whole numbers, which a schema file can declare as category if they are codes": [
            f"{name} ({_listed(np.unique(known))})" for name, known in whole if 2 < len(np.unique(known)) <= FEW
        ],
        "Numbers that may be dates, which are written as 2024-03-31": [
            f"{name} (such as {known[0]:.0f})" for name, known in whole if _are_dates(known)
        ],
        "Values far from all others, which a schema file can list under 'missing' if they mean empty cells": [
            text for column, values in zip(columns, x.T, strict=True) for text in _far_values(column, values)
        ],
        "Categories that are numbers except for some, which a schema file can list under 'missing'": [
            text for column, values in inferred if (text := _odd_levels(column, values))
        ],
        "Categories that begin with a number; if they are numbers, write units into the name of the column": [
            f"{column.name} (such as {column.levels[0]!r})" for column, _ in inferred if _begin_with_numbers(column)
        ],
        "Columns that give the label away, with one value for each class; '?ignore=' leaves them out": [
            column.name for at, column in enumerate(columns) if classes is not None and _is_label(x[:, at], classes)
        ],
        "Values that are far from those of all other owners, as in another unit": [
            text for name, at in _positions(columns) for text in _unlike_units(name, x[:, at], owners)
        ],
    }
    doubts = [f"{title}: {', '.join(names)}." for title, names in lists.items() if names]
    if pair := find_respelled(column.name for column in columns):
        doubts.append(f"Two columns whose names differ in capitals or spaces alone: {pair[0]!r} and {pair[1]!r}.")
    return doubts + _copies(x, classes, owners, find) + _owners_doubts(x, classes, owners)


def _known(values: Array) -> Array:
    return values[~np.isnan(values)]


def _positions(columns: Sequence[Column]) -> list[tuple[str, int]]:
    return [(column.name, at) for at, column in enumerate(columns) if column.kind == NUMBER]


def _listed(values: Array) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _are_dates(known: Array) -> bool:
    if not bool(((known >= 1900_00_00) & (known < 2100_00_00)).all()):
        return False
    try:
        return all(datetime.strptime(f"{value:.0f}", "%Y%m%d") for value in np.unique(known))
    except ValueError:
        return False


def _far_values(column: Column, values: Array) -> Iterator[str]:
    """Yield the least and the largest value if it is far from all others.

    A value is far if the distance is more than the range of all others. If several cells have it, as with a code for an
    empty cell, many times the usual distance between neighbours is enough.
    """
    if not column.is_number or column.bounds is not None:
        return
    different, counts = np.unique(_known(values), return_counts=True)
    if len(different) <= DIFFERENT:
        return
    for end, rest in ((0, different[1:]), (-1, different[:-1])):
        gap = abs(different[end] - rest[end])
        repeated = counts[end] > max(1, counts.sum() / 100)
        if gap > rest[-1] - rest[0] or (repeated and gap > GAPS * np.median(np.diff(rest))):
            shown = day(different[end]) if column.kind == DATE else f"{different[end]:g}"
            yield f"{column.name} {shown} ({counts[end]} {'cell' if counts[end] == 1 else 'cells'})"


def _odd_levels(column: Column, values: Array) -> str:
    """Return a category's name and its texts, if the others, one or more, are numbers."""
    odd = [level for level in column.levels if not is_number(level)]
    if column.kind != CATEGORY or not 0 < len(odd) < len(column.levels):
        return ""
    cells = int(np.isin(values, [column.levels.index(level) for level in odd]).sum())
    return f"{column.name} {' '.join(map(repr, odd))} ({cells} of {len(_known(values))} cells)"


def _begin_with_numbers(column: Column) -> bool:
    return (
        column.kind == CATEGORY
        and bool(column.levels)
        and not any(is_number(level) for level in column.levels)
        and all(_BEGINS_WITH_DIGIT.match(level) for level in column.levels)
    )


def _is_label(values: Array, classes: Array) -> bool:
    """Return True if each class has one value of its own in a column."""
    if len(values) < ROWS or np.isnan(values).any():
        return False
    names, label = np.unique(classes, return_inverse=True)
    different, value = np.unique(values, return_inverse=True)
    return 1 < len(names) == len(different) == len(np.unique(label * len(different) + value))


def _unlike_units(name: str, values: Array, owners: Array | None) -> Iterator[str]:
    """Yield the first owner whose values are all several times larger or smaller than those of all others."""
    names = [] if owners is None else np.unique(owners).tolist()
    if owners is None or not 1 < len(names) <= MOST_OWNERS:
        return
    held = {owner: _known(values[owners == owner]) for owner in names}
    ends = {owner: np.quantile(known, [0.05, 0.95]) for owner, known in held.items() if len(known) >= COMPARED}
    for owner, (low, high) in ends.items():
        others = [other for name, other in ends.items() if name != owner]
        least, most = min((e[0] for e in others), default=0.0), max((e[1] for e in others), default=0.0)
        if (0 < FACTOR * high < least) or (0 < FACTOR * most < low):
            yield f"{name} at {owner} ({low:g} to {high:g}, elsewhere {least:g} to {most:g})"
            return


def _copies(x: Array, classes: Array | None, owners: Array | None, find: Callable[[int], str]) -> list[str]:
    """Return a note on rows that an owner has twice: one may be for training and the other for testing."""
    codes = [np.unique(other, return_inverse=True)[1] for other in (classes, owners) if other is not None]
    rows = np.ascontiguousarray(np.column_stack([x, *codes]).astype(np.float64))
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, at = np.unique(whole, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[at] != np.arange(len(rows)))
    if not 0 < len(copies) < len(rows) / 2:  # Rows of few different values are equal by chance.
        return []
    count = f"{len(copies)} {'row is' if len(copies) == 1 else 'rows are'}"
    return [f"{count} equal to an earlier row of the same owner in every column (first: {find(int(copies[0]))})."]


def _owners_doubts(x: Array, classes: Array | None, owners: Array | None) -> list[str]:
    """Return notes on owners with the same rows, and with other numbers as labels than all others."""
    names = [] if owners is None else np.unique(owners).tolist()
    if owners is None or not 1 < len(names) <= MOST_OWNERS:
        return []
    doubts: list[str] = []
    held: dict[object, str] = {}
    for name in names:
        rows = np.ascontiguousarray(x[owners == name])
        content = (rows.tobytes(), () if classes is None else tuple(classes[owners == name].tolist()))
        if (other := held.setdefault(content, name)) != name:
            doubts.append(f"The rows of {name} are those of {other}. Is one a copy of the other?")
    if classes is None or classes.dtype.kind not in "iu":
        return doubts
    labels = {name: set(classes[owners == name].tolist()) for name in names}
    for name, own in labels.items():
        others = set().union(*(labels[other] for other in names if other != name))
        if own - others and others - own:
            shown = (", ".join(map(str, sorted(found))) for found in (own, others))
            doubts.append(
                "Labels of {} are {}, and those of all others {}. Do they mean the same?".format(name, *shown)
            )
            break
    return doubts
