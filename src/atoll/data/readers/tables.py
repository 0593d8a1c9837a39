"""Read tables from CSV and Parquet files, or from a folder with one file for each owner.

The label is the column asked for, otherwise ``label``, ``y`` or the last one; for several labels or numbers, commas
separate the names of several columns. ``owner`` names the owner of a row, ``split`` ("train" or "test") its part; both
are optional. A ``text`` column of strings makes a text data set; it is encoded by `text.encode` and other columns are
ignored. Otherwise every other column is a number, a date or a category, by its cells or by a schema
(`atoll.data.tables.schema`). Cells are kept as they are: a run fills, standardises and encodes them by statistics of
its training rows (`atoll.data.tables.preparation`).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import AtollError
from ..arrays import RawDataset
from ..dataset import Array
from ..tables.arrow_files import is_string, read_arrow
from ..tables.cells import Cells, read_cells
from ..tables.columns import TEXT, Column, recode
from ..tables.csv_text import place
from ..tables.description import describe_cells
from ..tables.schema import DECLARED, IGNORE, Schema
from . import text
from .binary import reading
from .table_join import TableFile, TableRequest, check_label_names, join_files
from .table_labels import (
    LABELS,
    check_classes,
    check_owners,
    check_targets,
    chosen_column,
    default_label,
    describe_owners,
    label_columns,
    labelled_rows,
)

SUFFIXES = (".csv", ".parquet")


def table_parts(path: Path, request: TableRequest = TableRequest()) -> RawDataset:
    """Read the training and test rows of a table, or of a folder with one table for each owner.

    Args:
        path: the file, or the folder.
        request: which columns are what.
    """
    if not path.is_dir():
        return join_files([_read(path, request)], request)
    paths = table_files(path)
    for before, after in pairwise(paths):
        if before.stem == after.stem:
            raise AtollError(
                f"{path} has two files of the owner {after.stem!r}: {before.name} and {after.name}. Remove one of them."
            )
    files = [_read(file, request) for file in paths]
    check_label_names(files)
    if any(file.owners is not None for file in files):
        raise AtollError(
            f"{path} has one file for each owner, and {files[0].path.name} has a column of owners besides. Remove the "
            "column, leave out '?owner=', or put all rows into one file."
        )
    joined = join_files(files, request, [file.path.stem for file in files])
    other = sorted(file.name for file in path.iterdir() if file not in paths and not _is_aside(file))
    note = f"Not read, because they are no .csv or .parquet files: {', '.join(other)}."
    schemas = [] if request.schema != Schema() else sorted(file.name for file in path.iterdir() if _is_schema(file))
    unread = f"Not read: {', '.join(schemas)}. A schema file is read with '?schema='."
    return joined._replace(notes=(*joined.notes, *([note] if other else []), *([unread] if schemas else [])))


def table_files(folder: Path) -> list[Path]:
    """Return the tables in a folder, without hidden files, which some systems leave beside others."""
    return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and not _is_aside(file))


def _is_aside(file: Path) -> bool:
    return file.name.startswith(".") or _is_schema(file)


def _is_schema(file: Path) -> bool:
    return file.suffix in (".yaml", ".yml") and not file.name.startswith(".")


def read_table(path: Path, table: pa.Table, request: TableRequest) -> RawDataset:
    """Return the rows of a table that was read already; ``path`` is for messages."""
    return join_files([_take(path, table, request)], request)


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


def _read(path: Path, request: TableRequest) -> TableFile:
    return _take(path, _table(path, request), request)


def _take(path: Path, table: pa.Table, request: TableRequest) -> TableFile:
    """Take rows, labels and owners from a table."""
    schema = request.schema
    owner = chosen_column(path, table, request.owner or schema.owner) or (
        "owner" if "owner" in table.column_names else None
    )
    label = request.label or schema.label
    labels = label_columns(path, table, label, request.one_label) or [default_label(path, table, owner)]
    left_out = {name for name, kind in schema.kinds.items() if kind == IGNORE} | set(request.ignore)
    for name in (*labels, *([owner] if owner else [])):
        if name in left_out or [*labels, owner].count(name) > 1:
            raise AtollError(f"{path}: column {name!r} cannot be two of label, owner and ignored. Choose one of them.")
    kept, notes = labelled_rows(path, table, labels)
    notes += [] if label or labels[0] in LABELS else [f"Taken as label, as the last column: {labels[0]}."]
    notes += [f"Left out: {', '.join(sorted(left_out))}."] if left_out else []
    rest = [name for name in table.column_names if name not in (*labels, owner, "split", *left_out)]
    columns: tuple[Column, ...]
    if "text" in rest and is_string(table.schema.field("text").type):
        x, columns = _values(path, table, "text"), ()
        others = [name for name in rest if name != "text"]
        notes += [f"Column text makes a data set of texts. Not used: {', '.join(others)}."] if others else []
    else:
        cells = [read_cells(path, table, name, schema) for name in rest]
        x, columns = _stack(path, cells)
        notes += describe_cells(cells)
    if not request.one_label:
        check_targets(path, table, labels, request.task)
    wanted = [_values(path, table.filter(pa.array(kept)), name) for name in labels]
    if request.one_label and wanted[0].dtype.kind == "b":
        wanted[0] = np.where(wanted[0], "true", "false")  # as files have them
    if request.one_label and not schema.classes:
        check_classes(path, labels[0], wanted[0], np.flatnonzero(kept))
    owners = _values(path, table, owner) if owner else None
    if owner and owners is not None:
        check_owners(path, owner, owners)
        notes += describe_owners(owners)
    return TableFile(
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
    schema, label = request.schema, request.label or request.schema.label
    classes = request.classes or [text for texts in schema.classes.values() for text in texts]
    with reading(path):
        table = read_arrow(path, schema, {label: classes} if label else {})
        names = table.column_names  # raises UnicodeDecodeError, a ValueError, if names are not UTF-8
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        where = f"{path} line 1: there are" if path.suffix == ".csv" else f"{path} has"
        raise AtollError(f"{where} several columns called {twice[0]!r}. Rename them.")
    for name in names if path.suffix == ".csv" else ():
        if pa.types.is_binary(table.schema.field(name).type):  # Arrow reads text that is not UTF-8 as bytes.
            row = next(row for row, cell in enumerate(table.column(name).to_pylist()) if not _is_utf8(cell))
            raise AtollError(
                f"{place(path, row)}: column {name!r} is not UTF-8 text. Save the file with the encoding UTF-8."
            )
    if len(names) < least or not table.num_rows:
        raise AtollError(
            f"{path} has {len(names)} columns and {table.num_rows} rows, but needs a column of data, a label and rows. "
            "Complete the file, or remove it."
        )
    for name in (*schema.kinds, *schema.own_missing, *request.ignore):
        chosen_column(path, table, name)
    return table


def _training_rows(path: Path, table: pa.Table) -> Array:
    """Return the mask of the training rows: all rows if the table has no column ``split``."""
    if "split" not in table.column_names:
        return np.ones(table.num_rows, dtype=bool)
    split = _values(path, table, "split")
    wrong = sorted({str(value) for value in split} - {"train", "test"})
    if wrong:
        row = int(np.flatnonzero(split.astype(str) == wrong[0])[0])
        raise AtollError(f"{place(path, row)}: column 'split' holds {wrong[0]!r}. Write 'train' or 'test'.")
    return np.asarray(split == "train")


def _is_utf8(cell: bytes | None) -> bool:
    try:
        (cell or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


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
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy())
