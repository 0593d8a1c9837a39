"""Join the tables of one or several files: columns, classes and owners."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ...core.problems import Classes
from ...errors import AtollError
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from ..tables.columns import CATEGORY, DATE, NUMBER, TEXT, Column, merge_columns, recode
from ..tables.csv_text import place
from ..tables.doubts import describe_doubts
from ..tables.notations import is_number
from ..tables.schema import Schema, level_text
from ..targets import plain
from . import text
from .table_labels import check_known_labels, describe_rare_classes


@dataclass(frozen=True)
class TableRequest:
    """What to read from a table.

    Args:
        label: name of the label column, or names of several columns, with commas between them.
        owner: name of the column with the owner of each row.
        ignore: columns that are left out.
        schema: what the user declares about columns.
        task: what the labels are, a value of ``--task``.
        own_columns: whether the files of a folder may have different columns.
        classes: names of the classes, if the user lists them.
    """

    label: str | None = None
    owner: str | None = None
    ignore: tuple[str, ...] = ()
    schema: Schema = Schema()
    task: str = Classes.task
    own_columns: bool = False
    classes: tuple[str, ...] = ()

    @property
    def one_label(self) -> bool:
        """Return True if labels are classes, in one column."""
        return self.task == Classes.task


@dataclass(frozen=True)
class TableFile:
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


def join_files(files: Sequence[TableFile], request: TableRequest, owners: Sequence[str] = ()) -> RawDataset:
    """Join the rows of files; ``owners`` are those of the files, if rows do not name them."""
    train = np.concatenate([file.train for file in files])
    named = [np.full(len(file.y), owner) for file, owner in zip(files, owners, strict=True)] if owners else []
    owner = np.concatenate(named) if named else files[0].owners
    y = _join_labels(files, request)
    if request.one_label and not request.schema.classes and train.any():
        check_known_labels(partial(_place, files), plain(f"{files[0].path}, labels", y), train, request.classes)
    x, columns = _join_rows(files, request.own_columns)
    notes = [f"{file.path.name}: {note}" if len(files) > 1 else note for file in files for note in file.notes]
    labels = y if request.one_label else None
    if columns[0].kind != TEXT:
        notes += describe_doubts(x, columns, request.schema.kinds, labels, owner, partial(_place_by_name, files))
    if labels is not None and not (request.classes or request.schema.classes):
        notes += describe_rare_classes(labels)
    classes = tuple(request.schema.classes) or None if request.one_label else files[0].names
    return RawDataset(
        RawSplit(x[train], y[train], None if owner is None else owner[train]),
        RawSplit(x[~train], y[~train], None if owner is None else owner[~train]),
        classes=classes,
        columns=columns,
        target_bounds=() if request.one_label else tuple(request.schema.bounds.get(name) for name in files[0].names),
        notes=tuple(notes),
        names_test_rows=not train.all(),
    )


def _join_rows(files: Sequence[TableFile], own_columns: bool) -> tuple[Array, tuple[Column, ...]]:
    if not files[0].columns:
        (x,), column = text.encode([words for file in files for words in file.x.tolist()])
        return x, (column,)
    _check_kinds(files)
    columns = merge_columns([(str(file.path), file.columns) for file in files], own_columns)
    names = [column.name for column in columns]
    parts = [
        recode(file.x, file.columns, columns, str(file.path), lacking=names if own_columns else ()) for file in files
    ]
    return np.concatenate(parts), columns


def _check_kinds(files: Sequence[TableFile]) -> None:
    """Refuse a file that has texts or numbers in a column of which another file has numbers or dates."""
    kinds: dict[tuple[str, str], TableFile] = {}
    for file in files:
        kinds |= {(column.name, column.kind): file for column in file.columns}
    for file in files:
        for at, column in enumerate(file.columns):
            for kind in {CATEGORY: (NUMBER, DATE), NUMBER: (DATE,)}.get(column.kind, ()):
                if (column.name, kind) in kinds:
                    other = kinds[column.name, kind]
                    row, text = _first_cell(file, at)
                    raise AtollError(
                        f"{_place([file], row)}: column {column.name!r} holds {text}, and in {other.path} it holds "
                        f"{kind}s. Correct the values, or declare the kind of the column in a schema file."
                    )


def _first_cell(file: TableFile, at: int) -> tuple[int, str]:
    """Return the row and the text of a cell that shows the kind of a column: for a category no number, if possible."""
    column, values = file.columns[at], file.x[:, at]
    if column.is_number:
        row = int(np.flatnonzero(~np.isnan(values))[0])
        return row, f"{values[row]:g}"
    texts = [level for level in column.levels if not is_number(level)] or list(column.levels)
    return int(np.flatnonzero(values == column.levels.index(texts[0]))[0]), repr(texts[0])


def _join_labels(files: Sequence[TableFile], request: TableRequest) -> Array:
    parts = [file.y for file in files]
    if request.one_label and request.schema.classes:
        return np.concatenate([_number_labels(file, request.schema) for file in files])
    if not request.one_label or len(files) == 1:
        return np.concatenate(parts)
    whole = [plain(f"{file.path}, labels", y) for file, y in zip(files, parts, strict=True)]
    same = len({y.dtype.kind for y in whole}) == 1
    if not same:
        _check_common_labels(files, whole)
    return np.concatenate(whole if same else [y.astype(str) for y in whole])


def check_label_names(files: Sequence[TableFile]) -> None:
    """Refuse files whose labels are in columns with different names."""
    for file in files[1:]:
        if file.names != files[0].names:
            raise AtollError(
                f"The label of {file.path} is {', '.join(file.names)} and that of {files[0].path} is "
                f"{', '.join(files[0].names)}. Name the columns alike, or choose the label with '?label='."
            )


def _check_common_labels(files: Sequence[TableFile], labels: Sequence[Array]) -> None:
    """Refuse a file of numbers as labels where others have names, if it has no label in common with any other."""
    sets = [set(y.astype(str).tolist()) for y in labels]
    for at, (file, own) in enumerate(zip(files, sets, strict=True)):
        if not any(own & other for other in sets[:at] + sets[at + 1 :]):
            raise AtollError(
                f"{file.path}: the labels {', '.join(sorted(own)[:5])} are in no other file, and other files have "
                "labels of another kind. Write labels alike, or list all classes with '?classes='."
            )


def _number_labels(file: TableFile, schema: Schema) -> Array:
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


def _place_by_name(files: Sequence[TableFile], at: int) -> str:
    """Return the place of a row without folders, for notes: they stay with runs, which are shown to others."""
    return Path(_place(files, at)).name


def _place(files: Sequence[TableFile], at: int) -> str:
    """Return the place of a row, given its position in the rows of all files."""
    for file in files:
        if at < len(file.rows):
            return place(file.path, int(file.rows[at]))
        at -= len(file.rows)
    raise IndexError(at)
