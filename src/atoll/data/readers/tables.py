"""Read tables from CSV and Parquet files, or from a folder with one file for each owner.

The label is the column asked for, otherwise ``label``, ``y`` or the last one; for several labels or numbers, commas
separate the names of several columns. ``owner`` names the owner of a row, ``split`` ("train" or "test") its part; both
are optional. A ``text`` column of strings makes a text data set; it is encoded by `text.encode` and other columns are
ignored. Otherwise every other column is a number, a date or a category, by its cells or by a schema
(`atoll.data.tables.schema`). Cells are kept as they are: a run fills, standardises and encodes them by statistics of
its training rows (`atoll.data.tables.preparation`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import AtollError
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from ..tables.cells import Cells, describe, place, read_arrow, read_cells
from ..tables.columns import TEXT, Column, merge_columns, recode
from ..tables.schema import DECLARED, IGNORE, Schema, level_text
from ..targets import plain
from . import text
from .binary import reading
from .table_labels import check_classes, chosen_column, default_label, label_columns, labelled_rows

SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class TableRequest:
    """What to read from a table.

    Args:
        label: name of the label column, or names of several columns, with commas between them.
        owner: name of the column with the owner of each row.
        ignore: columns that are left out.
        schema: what the user declares about columns.
        one_label: whether labels are classes, in one column.
        unlike: whether the files of a folder may have unlike columns.
    """

    label: str | None = None
    owner: str | None = None
    ignore: tuple[str, ...] = ()
    schema: Schema = Schema()
    one_label: bool = True
    unlike: bool = False


@dataclass(frozen=True)
class _File:
    """The content of one file."""

    path: Path
    x: Array  # raw rows, or texts
    columns: tuple[Column, ...]  # none of texts
    y: Array
    owners: Array | None
    train: Array  # mask
    rows: Array  # positions of the rows in the file
    names: tuple[str, ...]  # of label columns
    notes: tuple[str, ...]


def table_parts(path: Path, request: TableRequest = TableRequest()) -> RawDataset:
    """Read the training and test rows of a table, or of a folder with one table for each owner.

    Args:
        path: the file, or the folder.
        request: which columns are what.
    """
    if not path.is_dir():
        return _parts([_read(path, request)], request)
    paths = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    files = [_read(file, request) for file in paths]
    if any(file.owners is not None for file in files):
        raise AtollError(
            f"{path} has one file for each owner, and {files[0].path.name} has a column of owners besides. Remove the "
            "column, leave out '?owner=', or put all rows into one file."
        )
    return _parts(files, request, [file.path.stem for file in files])


def read_table(path: Path, table: pa.Table, request: TableRequest) -> RawDataset:
    """Return the rows of a table that was read already; ``path`` is for messages."""
    return _parts([_take(path, table, request)], request)


def read_rows(path: Path, columns: Sequence[Column], lacking: Collection[str] = ()) -> Array:
    """Read raw rows without labels, for prediction.

    Args:
        path: the file, which may have further columns.
        columns: the columns that a model reads.
        lacking: names of columns that may be missing, because the model does not read them.

    Raises:
        AtollError: a column is missing, or a cell does not suit its kind.
    """
    kinds = {column.name: column.kind for column in columns if column.kind in DECLARED}
    table = _table(path, TableRequest(), least=1)
    for column in columns:
        if column.name not in table.column_names and column.name not in lacking:
            raise AtollError(
                f"{path} has no column {column.name!r}, which the model reads. Add it; cells may be empty."
            )
    if columns[0].kind == TEXT:
        (x,), column = text.encode(_values(path, table, columns[0].name).tolist())
        return recode(x, (column,), columns)
    schema = Schema(kinds=kinds)
    there = [column.name for column in columns if column.name in table.column_names]
    cells = [read_cells(path, table, name, schema) for name in there]
    return recode(*_stack(path, cells), columns, str(path), lacking)


def _parts(files: Sequence[_File], request: TableRequest, owners: Sequence[str] = ()) -> RawDataset:
    """Join the rows of files; ``owners`` are those of the files, if rows do not name them."""
    train = np.concatenate([file.train for file in files])
    named = [np.full(len(file.y), owner) for file, owner in zip(files, owners, strict=True)] if owners else []
    owner = np.concatenate(named) if named else files[0].owners
    y = _join_labels(files, request)
    x, columns = _join_rows(files, request.unlike)
    notes = [f"{file.path.name}: {note}" if len(files) > 1 else note for file in files for note in file.notes]
    classes = tuple(request.schema.classes) or None if request.one_label else files[0].names
    return RawDataset(
        RawSplit(x[train], y[train], None if owner is None else owner[train]),
        RawSplit(x[~train], y[~train], None if owner is None else owner[~train]),
        classes=classes,
        columns=columns,
        notes=tuple(notes),
    )


def _join_rows(files: Sequence[_File], unlike: bool) -> tuple[Array, tuple[Column, ...]]:
    if not files[0].columns:
        (x,), column = text.encode([words for file in files for words in file.x.tolist()])
        return x, (column,)
    columns = merge_columns([(str(file.path), file.columns) for file in files], unlike)
    names = [column.name for column in columns]
    parts = [recode(file.x, file.columns, columns, str(file.path), lacking=names if unlike else ()) for file in files]
    return np.concatenate(parts), columns


def _join_labels(files: Sequence[_File], request: TableRequest) -> Array:
    parts = [file.y for file in files]
    if request.one_label and request.schema.classes:
        return np.concatenate([_number_labels(file, request.schema) for file in files])
    if not request.one_label or len(files) == 1:
        return np.concatenate(parts)
    whole = [plain(f"{file.path}, labels", y) for file, y in zip(files, parts, strict=True)]
    same = len({y.dtype.kind for y in whole}) == 1
    return np.concatenate(whole if same else [y.astype(str) for y in whole])


def _number_labels(file: _File, schema: Schema) -> Array:
    """Return the number of the class that the schema gives to each label."""
    number = {label: at for at, labels in enumerate(schema.classes.values()) for label in labels}
    found = [level_text(label) for label in file.y.tolist()]
    for row, label in zip(file.rows.tolist(), found, strict=True):
        if label not in number:
            raise AtollError(
                f"{place(file.path, row)}: the label is {label!r}, which no class of the schema has. Correct the cell, "
                "or add the label under 'classes'."
            )
    return np.array([number[label] for label in found], dtype=np.int64)


def _read(path: Path, request: TableRequest) -> _File:
    return _take(path, _table(path, request), request)


def _take(path: Path, table: pa.Table, request: TableRequest) -> _File:
    """Take rows, labels and owners from a table."""
    schema = request.schema
    owner = chosen_column(path, table, request.owner or schema.owner) or (
        "owner" if "owner" in table.column_names else None
    )
    label = request.label or schema.label
    labels = label_columns(path, table, label, request.one_label) or [default_label(path, table, owner)]
    kept, notes = labelled_rows(path, table, labels)
    left_out = {name for name, kind in schema.kinds.items() if kind == IGNORE} | set(request.ignore)
    notes += [f"Left out: {', '.join(sorted(left_out))}."] if left_out else []
    rest = [name for name in table.column_names if name not in (*labels, owner, "split", *left_out)]
    columns: tuple[Column, ...]
    if "text" in rest and _is_text(table, "text"):
        x, columns = _values(path, table, "text"), ()
    else:
        cells = [read_cells(path, table, name, schema) for name in rest]
        x, columns = _stack(path, cells)
        notes += describe(cells)
    wanted = [_values(path, table.filter(pa.array(kept)), name) for name in labels]
    if request.one_label and not schema.classes:
        check_classes(path, labels[0], wanted[0], np.flatnonzero(kept))
    owners = _values(path, table, owner) if owner else None
    return _File(
        path,
        x[kept],
        columns,
        wanted[0] if request.one_label else np.stack(wanted, axis=1),
        None if owners is None else owners[kept],
        _training_rows(path, table)[kept],
        np.flatnonzero(kept),
        tuple(labels),
        tuple(notes),
    )


def _stack(path: Path, cells: Sequence[Cells]) -> tuple[Array, tuple[Column, ...]]:
    if not cells:
        raise AtollError(f"{path} has no column of data besides the label. Add one.")
    return np.stack([cell.values for cell in cells], axis=1), tuple(cell.column for cell in cells)


def _table(path: Path, request: TableRequest, least: int = 2) -> pa.Table:
    """Read a file with at least ``least`` columns."""
    with reading(path):
        table = read_arrow(path, request.schema)
        names = table.column_names  # raises UnicodeDecodeError, a ValueError, if names are not UTF-8
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise AtollError(f"{path} has several columns called {twice[0]!r}: rename them.")
    for name in names if path.suffix == ".csv" else ():
        if pa.types.is_binary(table.schema.field(name).type):  # Arrow reads text that is not UTF-8 as bytes.
            raise AtollError(f"{path}: column {name!r} is not UTF-8 text. Save the file with the encoding UTF-8.")
    if len(names) < least or not table.num_rows:
        raise AtollError(f"{path} has {len(names)} columns and {table.num_rows} rows, but needs data and a label.")
    for name in (*request.schema.kinds, *request.ignore):
        chosen_column(path, table, name)
    return table


def _training_rows(path: Path, table: pa.Table) -> Array:
    """Return the mask of the training rows: all rows if the table has no column ``split``."""
    if "split" not in table.column_names:
        return np.ones(table.num_rows, dtype=bool)
    split = _values(path, table, "split")
    wrong = sorted({str(value) for value in split} - {"train", "test"})
    if wrong:
        raise AtollError(f"{path}: column 'split' holds {wrong[0]!r}. Write 'train' or 'test'.")
    return np.asarray(split == "train")


def _is_text(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _values(path: Path, table: pa.Table, name: str) -> Array:
    column = table.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise AtollError(
            f"{place(path, row)}: column {name!r} is empty there, and in {column.null_count} rows in all. Fill or "
            "remove such rows."
        )
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())
