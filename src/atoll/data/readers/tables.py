"""Read tables from CSV and Parquet files.

The label is the column asked for, otherwise ``label``, ``y`` or the last one; for several labels or numbers, commas
separate the names of several columns. ``owner`` names the owner of a row, ``split`` ("train" or "test") its part; both
are optional. A ``text`` column of strings makes a text data set; it
is encoded by `text.encode` and other columns are ignored. Otherwise every other column must be a number; columns are
standardised with the mean and standard deviation of the training rows (of all rows, where there is no ``split``)
unless that is switched off.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ...errors import AtollError, unknown
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from . import text
from .binary import reading


def table_parts(
    path: Path,
    label: str | None = None,
    owner: str | None = None,
    standardise: bool = True,
    one_label: bool = True,
) -> RawDataset:
    """Read the training and test rows of a table.

    Args:
        path: the file.
        label: name of the label column, or names of several columns, with commas between them.
        owner: name of the column with the owner of each row.
        standardise: whether columns of numbers, and targets that are numbers, are standardised.
        one_label: whether labels are classes, in one column.
    """
    table = _table(path)
    owner = _chosen(path, table, owner) or ("owner" if "owner" in table.column_names else None)
    labels = _label_columns(path, table, label, one_label) or [_label(path, table, owner)]
    train = _training_rows(path, table)
    rest = [name for name in table.column_names if name not in (*labels, owner, "split")]
    if "text" in rest and _is_text(table, "text"):
        texts = _values(path, table, "text")
        x_train, x_test = text.encode(texts[train].tolist(), texts[~train].tolist())
    else:
        x_train, x_test = _numbers(path, table, rest, train, standardise)
    columns, owners = [_values(path, table, name) for name in labels], _values(path, table, owner) if owner else None
    y = columns[0] if one_label else np.stack(columns, axis=1)
    return RawDataset(
        RawSplit(x_train, y[train], None if owners is None else owners[train]),
        RawSplit(x_test, y[~train], None if owners is None else owners[~train]),
        classes=None if one_label else tuple(labels),
        standardise=standardise,
    )


def _table(path: Path) -> pa.Table:
    with reading(path):
        table = pa.csv.read_csv(path) if path.suffix == ".csv" else pa.parquet.read_table(path)
        names = table.column_names  # raises UnicodeDecodeError, a ValueError, if names are not UTF-8
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AtollError(f"{path} has several columns called {twice[0]!r}: rename them.")
    for name in names if path.suffix == ".csv" else ():
        if pa.types.is_binary(table.schema.field(name).type):  # Arrow reads text that is not UTF-8 as bytes.
            raise AtollError(f"{path}: column {name!r} is not UTF-8 text. Save the file with the encoding UTF-8.")
    if len(names) < 2 or not table.num_rows:
        raise AtollError(f"{path} has {len(names)} columns and {table.num_rows} rows, but needs data and a label.")
    return table


def _chosen(path: Path, table: pa.Table, name: str | None) -> str | None:
    if name is not None and name not in table.column_names:
        raise unknown(f"column of {path}", name, table.column_names)
    return name


def _label_columns(path: Path, table: pa.Table, label: str | None, one_label: bool) -> list[str]:
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
        _chosen(path, table, name)
    return names


def _label(path: Path, table: pa.Table, owner: str | None) -> str:
    left = [name for name in table.column_names if name not in (owner, "split")]
    found = [name for name in ("label", "y") if name in left] or left[-1:]
    if not found:
        raise AtollError(f"{path} has no column for the label. Add one, or choose one with '?label='.")
    return found[0]


def _training_rows(path: Path, table: pa.Table) -> Array:
    """Return the mask of the training rows: all rows if the table has no column ``split``."""
    if "split" not in table.column_names:
        return np.ones(table.num_rows, dtype=bool)
    split = _values(path, table, "split")
    wrong = sorted({str(value) for value in split} - {"train", "test"})
    if wrong:
        raise AtollError(f"{path}: column 'split' holds {wrong[0]!r}. Write 'train' or 'test'.")
    return np.asarray(split == "train")


def _numbers(path: Path, table: pa.Table, names: list[str], train: Array, standardise: bool) -> tuple[Array, Array]:
    for name in names:
        kind = table.schema.field(name).type
        if not any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
            raise AtollError(
                f"{path}: column {name!r} holds {kind}, not numbers. Remove it, turn it into numbers, or make it the "
                f"label with '?label={name}'."
            )
    columns = [_values(path, table, name).astype(np.float64) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise AtollError(f"{path}: column {name!r} holds NaN or infinity in row {row}. Fill or remove such values.")
    x = np.stack(columns, axis=1)
    if standardise and train.any():
        spread = x[train].std(axis=0)
        x = (x - x[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    x = x.astype(np.float32)
    return x[train], x[~train]


def _is_text(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _values(path: Path, table: pa.Table, name: str) -> Array:
    column = table.column(name)
    if column.null_count:
        raise AtollError(f"{path}: column {name!r} has {column.null_count} empty cells. Fill or remove such rows.")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())
