"""Read the cells of files: infer the kind of each column, and turn cells into numbers and codes."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from ...errors import AtollError
from ..dataset import Array
from .columns import CATEGORY, DATE, EMPTY, LARGEST, NUMBER, Column
from .csv_text import check_text, place, uneven_line
from .notations import find_other_notation, is_date, is_number, remedy
from .schema import Schema, level_text

EMPTY_TEXTS = ("", "?", ".", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-")
MOST_CATEGORIES = 50  # more different texts than this, in more than a quarter of the rows, are no categories
FEW = 10  # different texts that may be categories in any case, and different numbers that may be codes of categories
LARGEST_WHOLE = 2**53  # from which on floats skip whole numbers
DAY = 86_400_000_000  # microseconds


class Cells(NamedTuple):
    """A column of a file.

    Args:
        column: name, kind and categories.
        values: float64 ``[N]``, as raw rows have them.
        declared: whether a schema names the kind.
    """

    column: Column
    values: Array
    declared: bool


def read_arrow(path: Path, schema: Schema) -> pa.Table:
    """Read a file. Texts that mean an empty cell are empty; cells of declared categories stay texts.

    Spaces around names and texts are dropped.

    Raises:
        AtollError: the file is no CSV in UTF-8 with commas, or a line has more or fewer cells than the first one.
    """
    if path.suffix != ".csv":
        return _clean(_read_texts(pa.parquet.read_table(path), schema), schema)
    check_text(path)
    try:
        return _clean(_read_csv(path, schema), schema)
    except pa.ArrowInvalid:
        if (error := uneven_line(path)) is not None:
            raise error from None
        raise


def _read_csv(source: Path | pa.BufferReader, schema: Schema) -> pa.Table:
    return pa.csv.read_csv(
        source,
        pa.csv.ReadOptions(use_threads=False),
        pa.csv.ParseOptions(newlines_in_values=True),
        _conversion(schema),
    )


def _conversion(schema: Schema) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        null_values=[f"{before}{text}" for text in (*EMPTY_TEXTS, *schema.missing) for before in ("", " ")],
        strings_can_be_null=True,
        column_types={name: pa.string() for name, kind in schema.kinds.items() if kind == CATEGORY},
    )


def _read_texts(table: pa.Table, schema: Schema) -> pa.Table:
    """Read the columns of texts in a Parquet file as those of a CSV: empty cells, numbers and dates may be texts."""
    names = [field.name for field in table.schema if _is_string(field.type)]
    if not names:
        return table
    written = pa.BufferOutputStream()
    pa.csv.write_csv(table.select(names), written)
    read = _read_csv(pa.BufferReader(written.getvalue()), schema)
    for name in names:
        table = table.set_column(table.column_names.index(name), name, read.column(name))
    return table


def _clean(table: pa.Table, schema: Schema) -> pa.Table:
    """Drop spaces around names and texts, and make numbers empty that mean an empty cell: -9 and -9.0 are one."""
    missing = pa.array([float(text) for text in schema.missing if is_number(text)], pa.float64())
    for at, field in enumerate(table.schema):
        column = table.column(at)
        if _is_string(field.type):
            table = table.set_column(at, field.name, pa.compute.utf8_trim_whitespace(column))
        elif _is_numeric(field.type) and len(missing):
            found = pa.compute.is_in(column.cast(pa.float64(), safe=False), missing)
            table = table.set_column(at, field.name, pa.compute.if_else(found, None, column))
    return table.rename_columns([name.strip() for name in table.column_names])


def read_cells(path: Path, table: pa.Table, name: str, schema: Schema) -> Cells:
    """Read one column.

    Args:
        path: the file, for messages.
        table: its content.
        name: the column.
        schema: what the user declares.

    Raises:
        AtollError: cells do not suit the declared kind, or no kind suits the cells.
    """
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = schema.kinds.get(name) or _infer(path, name, column)
    declared = name in schema.kinds
    if kind == EMPTY:
        return Cells(Column(name, EMPTY), np.full(len(column), np.nan), declared)
    if kind == CATEGORY:
        return _categories(path, name, column, schema, declared)
    values = _dates(path, name, column) if kind == DATE else _numbers(path, name, column)
    wrong = np.flatnonzero(np.abs(values) > LARGEST)
    if len(wrong):
        number = values[wrong[0]]
        held = "infinity" if np.isinf(number) else f"{number:g}, which is too large to compute with"
        raise AtollError(
            f"{place(path, int(wrong[0]))}: column {name!r} holds {held}. Correct the cell, or leave it empty."
        )
    return Cells(Column(name, kind, bounds=schema.bounds.get(name)), values, declared)


def _infer(path: Path, name: str, column: pa.ChunkedArray) -> str:
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return EMPTY
    if _is_numeric(kind) or pa.types.is_boolean(kind):
        return NUMBER
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return DATE
    if not _is_string(kind):
        row = column.is_valid().to_pylist().index(True)
        raise AtollError(
            f"{place(path, row)}: column {name!r} holds {kind}, which is neither numbers, dates nor texts. Leave it "
            f"out with '?ignore={name}'."
        )
    _check_numbers(path, name, column)
    different, rows = pa.compute.count_distinct(column).as_py(), len(column) - column.null_count
    if different > FEW and (different > rows / 2 or (different > MOST_CATEGORIES and different > rows / 4)):
        row, text = _first_text(column)
        raise AtollError(
            f"{place(path, row)}: column {name!r} has {different} different texts in {rows} rows, such as {text!r}, so "
            f"it is no category. {remedy(text)}Leave it out with '?ignore={name}', or declare it in a schema file."
        )
    return CATEGORY


def _check_numbers(path: Path, name: str, column: pa.ChunkedArray) -> None:
    """Refuse a column of numbers or dates with other cells: a mistake must not make it a category in silence."""
    cells = [(row, str(cell)) for row, cell in enumerate(column.to_pylist()) if cell is not None]
    texts: dict[str, int] = {}  # with the first row of each
    for row, text in cells:
        texts.setdefault(text, row)
    for kind, test in {"numbers": is_number, "dates": is_date}.items():
        found = {text for text in texts if test(text)}
        others = [(row, text) for row, text in cells if text not in found]
        if len(found) > FEW and 0 < len(others) <= len(cells) / 2:
            row, text = others[0]
            raise AtollError(
                f"{place(path, row)}: column {name!r} holds {text!r} among {kind}. {remedy(text)}Correct the cell, "
                "list the text under 'missing' in a schema file, or declare the column as category there."
            )
    if (other := find_other_notation(texts)) is not None:
        raise AtollError(
            f"{place(path, texts[other])}: column {name!r} holds {other!r}. {remedy(other)}If its cells are "
            "categories, declare the column as category in a schema file."
        )


def _first_text(column: pa.ChunkedArray) -> tuple[int, str]:
    """Return the first cell with a value that is no number, or the first with a value."""
    cells = [(row, str(cell)) for row, cell in enumerate(column.to_pylist()) if cell is not None]
    return next(((row, text) for row, text in cells if not is_number(text)), cells[0])


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    if _is_string(column.type):
        row, text = _first_text(column)
        raise AtollError(
            f"{place(path, row)}: column {name!r} is a number, and the cell holds {text!r}. Correct the cell, list the "
            "text under 'missing' in a schema file, or declare the column as category there."
        )
    values = np.asarray(column.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy())
    wrong = np.flatnonzero(np.abs(values) >= LARGEST_WHOLE)
    if len(wrong) and pa.types.is_integer(column.type):
        raise AtollError(
            f"{place(path, int(wrong[0]))}: column {name!r} holds {column[int(wrong[0])]}, which has too many digits "
            f"to compute with, as identifiers have. Leave it out with '?ignore={name}'."
        )
    return values


def _dates(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """Return days since 1970."""
    try:
        if _is_numeric(column.type):
            raise pa.ArrowInvalid("numbers would be taken for microseconds")
        moments = column.cast(pa.timestamp("us"), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as reason:
        row, text = _first_text(column)
        raise AtollError(
            f"{place(path, row)}: column {name!r} is a date, and a cell such as {text!r} is none. Write dates "
            "as 2024-03-31."
        ) from reason
    numbers = moments.cast(pa.int64()).cast(pa.float64(), safe=False).fill_null(float("nan"))
    return np.asarray(numbers.to_numpy()) / DAY


def _categories(path: Path, name: str, column: pa.ChunkedArray, schema: Schema, declared: bool) -> Cells:
    texts = [None if cell is None else level_text(cell) for cell in column.to_pylist()]
    texts = [None if text in schema.missing else text for text in texts]
    fixed = schema.levels.get(name)
    levels = fixed or tuple(sorted({text for text in texts if text is not None}))
    code = {level: float(i) for i, level in enumerate(levels)}
    for row, text in enumerate(texts):
        if text is not None and text not in code:
            raise AtollError(
                f"{place(path, row)}: column {name!r} holds {text!r}, which the schema does not list "
                f"({', '.join(levels[:10])}). Correct the cell, or add the value to the schema."
            )
    values = np.array([np.nan if text is None else code[text] for text in texts])
    return Cells(Column(name, CATEGORY, levels, fixed is not None), values, declared)
