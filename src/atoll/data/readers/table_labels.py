"""Find the label columns of a table, and the rows that have a label."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...core.problems import Labels
from ...errors import AtollError, unknown
from ..dataset import Array
from ..tables.cells import FEW
from ..tables.columns import LARGEST
from ..tables.csv_text import place
from ..tables.labels import class_order, find_respelled

LABELS = ("label", "y")  # names of the label column that need not be given


def labelled_rows(path: Path, table: pa.Table, labels: Sequence[str]) -> tuple[Array, list[str]]:
    """Return the mask of the rows that have a label, and a note if others are dropped."""
    empty = np.zeros(table.num_rows, dtype=bool)
    for name in labels:
        empty |= np.asarray(table.column(name).is_null(nan_is_null=True).to_numpy())
    if empty.all():
        raise AtollError(
            f"{path}: no row has a value in the label column {labels[0]!r}. Choose another with '?label='."
        )
    if not empty.any():
        return ~empty, []
    first = place(path, int(np.flatnonzero(empty)[0]))
    return ~empty, [f"{int(empty.sum())} rows without a label were dropped (first: {first})."]


def check_classes(path: Path, name: str, y: Array, rows: Array) -> None:
    """Raise an AtollError if a label is a number with a fraction, infinite, or neither a number nor a text."""
    if not _has_names(y):
        raise AtollError(
            f"{place(path, int(rows[0]))}: the label {y[0]} in column {name!r} is neither a number nor a text. Choose "
            "another column with '?label='."
        )
    wrong: Array = np.flatnonzero((y != np.floor(y)) | np.isinf(y)) if y.dtype.kind == "f" else np.arange(0)
    if len(wrong):
        raise AtollError(
            f"{place(path, int(rows[wrong[0]]))}: the label {y[wrong[0]]} in column {name!r} is no class. Give "
            "integers or names, choose another column with '?label=', or predict numbers with --task regression."
        )


def chosen_column(path: Path, table: pa.Table, name: str | None) -> str | None:
    if name is not None and name not in table.column_names:
        raise unknown("column", name, table.column_names, f"of {path}")
    return name


def label_columns(path: Path, table: pa.Table, label: str | None, one_label: bool) -> list[str]:
    """Return the label columns asked for; an existing column is one label, also with a comma in its name."""
    if label is None:
        return []
    names = [label] if label in table.column_names or one_label else label.split(",")
    parts = label.split(",")
    if one_label and len(parts) > 1 and label not in table.column_names and set(parts) <= set(table.column_names):
        raise AtollError(
            f"{path}: '?label={label}' names {len(parts)} columns. Say what they are with --task multilabel (0 and 1) "
            "or --task regression (numbers)."
        )
    for name in names:
        chosen_column(path, table, name)
    return names


def default_label(path: Path, table: pa.Table, owner: str | None) -> str:
    left = [name for name in table.column_names if name not in (owner, "split")]
    found = [name for name in LABELS if name in left] or left[-1:]
    if not found:
        raise AtollError(f"{path} has no column for the label. Add one, or choose one with '?label='.")
    return found[0]


def check_targets(path: Path, table: pa.Table, names: Sequence[str], task: str) -> None:
    """Raise an AtollError if a cell of a label column is no number that models can compute with, or no 0 or 1."""
    for name in names:
        for row, cell in enumerate(table.column(name).to_pylist()):
            if cell is not None and (not isinstance(cell, float | int) or abs(cell) > LARGEST):
                raise AtollError(
                    f"{place(path, row)}: the label {cell!r} in column {name!r} is no number to predict. Correct the "
                    "cell, with a point in numbers such as 1.5, or leave out --task if labels are classes."
                )
            if task == Labels.task and cell not in (None, 0, 1):
                raise AtollError(
                    f"{place(path, row)}: the label {cell!r} in column {name!r} is neither 0 nor 1, as --task "
                    "multilabel needs. Correct the cell, or take --task regression for other numbers."
                )


def check_owners(path: Path, name: str, owners: Array) -> None:
    """Raise an AtollError if owners are numbers with a fraction, or neither numbers nor texts."""
    if not _has_names(owners):
        raise AtollError(
            f"{place(path, 0)}: column {name!r} holds {owners[0]}, which is no name of an owner. Choose another column "
            "with '?owner='."
        )
    wrong: Array = np.flatnonzero(owners != np.floor(owners)) if owners.dtype.kind == "f" else np.arange(0)
    if len(wrong):
        raise AtollError(
            f"{place(path, int(wrong[0]))}: column {name!r} holds {owners[wrong[0]]}, which is no name of an owner. "
            "Choose another column with '?owner='."
        )


def describe_owners(owners: Array) -> list[str]:
    """Return a note if the names of two owners differ in capitals alone."""
    pair = find_respelled(map(str, np.unique(owners).tolist()))
    return [f"Two owners whose names differ in capitals or spaces alone: {pair[0]!r} and {pair[1]!r}."] if pair else []


def describe_rare_classes(y: Array) -> list[str]:
    """Return a note on classes of so few rows that the label may be a mistake."""
    names, counts = np.unique(y, return_counts=True)
    rare = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count <= max(2, len(y) / 100)]
    if not 0 < len(rare) < len(names) or len(names) > FEW:
        return []
    return [f"Classes of few rows: {', '.join(rare)}. Correct such labels, or empty the cells to leave the rows out."]


def _has_names(values: Array) -> bool:
    return values.dtype.kind in "biufU" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values))


def check_known_labels(find: Callable[[int], str], y: Array, train: Array, classes: Sequence[str]) -> None:
    """Check the labels of all files together, if they are classes.

    Args:
        find: returns the place of a row in its file.
        y: the labels.
        train: mask of the training rows.
        classes: names of the classes, if the user lists them.

    Raises:
        AtollError: a test row has a label that no training row has, a label is not listed, labels differ in their
            spelling alone, or there are nearly as many as rows.
    """
    known = set(classes) or {str(label) for label in np.unique(y[train])}
    different, first = np.unique(y, return_index=True)
    rows = dict(sorted(zip(map(str, different), first.tolist(), strict=True), key=lambda found: found[1]))
    for label, row in rows.items():
        if label not in known:
            names = ", ".join(sorted(known, key=class_order)[:FEW])
            raise AtollError(
                f"{find(row)}: the label {label!r} is not one of the {len(known)} classes ({names}). Correct or remove "
                "the row, or list all classes with '?classes='."
            )
    if not classes and (pair := find_respelled(rows)):
        raise AtollError(
            f"{find(rows[pair[1]])}: the label {pair[1]!r} differs from {pair[0]!r} in capitals or spaces alone. Write "
            "both alike, or list all classes with '?classes='."
        )
    if FEW < len(known) > len(y) / 2 and not classes:
        raise AtollError(
            f"{find(0)}: the label column has {len(known)} different values in {len(y)} rows, so they are no classes. "
            "Choose another column with '?label=', or predict numbers with --task regression."
        )
