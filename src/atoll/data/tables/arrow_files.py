"""Read CSV and Parquet files into Arrow tables with the same cells: texts without spaces around them, gaps empty."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from .columns import CATEGORY
from .csv_text import check_text, uneven_line
from .notations import is_number
from .schema import Schema

EMPTY_TEXTS = ("", "?", ".", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-")


def read_arrow(path: Path, schema: Schema, labels: Mapping[str, Sequence[str]] | None = None) -> pa.Table:
    """Read a file. Texts that mean an empty cell are empty; cells of declared categories stay texts.

    Spaces around names and texts are dropped.

    Args:
        path: the file.
        schema: what the user declares.
        labels: the labels of all classes by the name of their column, if the user lists them. Like declared categories,
            they are values, also if such a text means an empty cell elsewhere.

    Raises:
        AtollError: the file is no CSV in UTF-8 with commas, or a line has more or fewer cells than the first one.
    """
    values = {
        name: listed
        for name, listed in {**schema.levels, **(labels or {})}.items()
        if not set(listed).isdisjoint((*EMPTY_TEXTS, *schema.missing))
    }
    if path.suffix != ".csv":
        return _clean(_read_texts(pa.parquet.read_table(path), schema, values), schema)
    check_text(path)
    try:
        return _clean(_read_csv(path, schema, values), schema)
    except pa.ArrowInvalid:
        if (error := uneven_line(path)) is not None:
            raise error from None
        raise


def _read_csv(source: Path | pa.Buffer, schema: Schema, values: Mapping[str, Sequence[str]]) -> pa.Table:
    """Read a CSV; texts in ``values`` are no empty cells in the columns of these names."""
    table = _read_columns(source, schema)
    for name in values.keys() & set(table.column_names):
        at = table.column_names.index(name)
        table = table.set_column(at, name, _read_columns(source, schema, name, values[name]).column(0))
    return table


def _read_columns(
    source: Path | pa.Buffer, schema: Schema, only: str | None = None, values: Sequence[str] = ()
) -> pa.Table:
    empty = [text for text in (*EMPTY_TEXTS, *schema.missing) if text not in values]
    return pa.csv.read_csv(
        source if isinstance(source, Path) else pa.BufferReader(source),
        pa.csv.ReadOptions(use_threads=False),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(
            null_values=[f"{before}{text}" for text in empty for before in ("", " ")],
            strings_can_be_null=True,
            column_types={name: pa.string() for name, kind in schema.kinds.items() if kind == CATEGORY},
            include_columns=[only] if only else None,
        ),
    )


def _read_texts(table: pa.Table, schema: Schema, values: Mapping[str, Sequence[str]]) -> pa.Table:
    """Read the columns of texts in a Parquet file as those of a CSV: empty cells, numbers and dates may be texts."""
    names = [field.name for field in table.schema if is_string(field.type)]
    if not names:
        return table
    written = pa.BufferOutputStream()
    pa.csv.write_csv(table.select(names), written)
    read = _read_csv(written.getvalue(), schema, values)
    for name in names:
        table = table.set_column(table.column_names.index(name), name, read.column(name))
    return table


def _clean(table: pa.Table, schema: Schema) -> pa.Table:
    """Drop spaces around names and texts, and make cells empty that a schema calls missing: -9 and -9.0 are one."""
    table = table.rename_columns([name.strip() for name in table.column_names])
    for at, field in enumerate(table.schema):
        name, column = field.name, table.column(at)
        missing = schema.missing_in(name)
        if is_string(field.type):
            trimmed = pa.compute.utf8_trim_whitespace(column)
            found = pa.compute.is_in(trimmed, pa.array(schema.own_missing.get(name, ()), trimmed.type))
            cells = pa.compute.if_else(found, None, trimmed)
            declared = schema.kinds.get(name) == CATEGORY
            table = table.set_column(at, name, cells if declared or cells.equals(column) else _as_numbers(cells))
        elif is_numeric(field.type) and missing:
            numbers = pa.array([float(text) for text in missing if is_number(text)], pa.float64())
            found = pa.compute.is_in(column.cast(pa.float64(), safe=False), numbers)
            table = table.set_column(at, name, pa.compute.if_else(found, None, column))
    return table


def _as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as numbers if all of them are."""
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def is_string(kind: pa.DataType) -> bool:
    """Return True for texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return True for numbers of any type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
