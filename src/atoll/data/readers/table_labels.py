"""Find the label columns of a table, and the rows that have a label."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import AtollError, unknown
from ..dataset import Array
from ..tables.cells import place


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
    """Raise an AtollError if a label is a number with a fraction."""
    wrong: Array = np.flatnonzero(y != np.floor(y)) if y.dtype.kind == "f" else np.arange(0)
    if len(wrong):
        raise AtollError(
            f"{place(path, int(rows[wrong[0]]))}: the label {y[wrong[0]]} in column {name!r} is no class. Give "
            "integers or names, choose another column with '?label=', or predict numbers with --task regression."
        )


def chosen_column(path: Path, table: pa.Table, name: str | None) -> str | None:
    if name is not None and name not in table.column_names:
        raise unknown(f"column of {path}", name, table.column_names)
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
    found = [name for name in ("label", "y") if name in left] or left[-1:]
    if not found:
        raise AtollError(f"{path} has no column for the label. Add one, or choose one with '?label='.")
    return found[0]
