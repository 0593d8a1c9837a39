"""Read the cells of Arrow tables: infer the kind of each column, and turn cells into numbers and codes."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ...errors import AtollError
from ..dataset import Array
from .arrow_files import is_numeric, is_string
from .columns import CATEGORY, DATE, EMPTY, LARGEST, NUMBER, Column
from .csv_text import place
from .notations import find_other_notation, is_date, is_number, remedy
from .schema import Schema, level_text

MOST_CATEGORIES = 50  # more different texts than this, in more than a quarter of the rows, are no categories
FEW = 10  # different texts that may be categories in any case, and different numbers that may be codes of categories
LARGEST_WHOLE = 2**53  # from which on floats skip whole numbers
DAY = 86_400_000_000  # microseconds
_PLUS = re.compile(r"\(?\++\)?")


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
    if is_numeric(kind) or pa.types.is_boolean(kind):
        return NUMBER
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return DATE
    if not is_string(kind):
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


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    if is_string(column.type):
        row, text = _first_text(column)
        raise AtollError(
            f"{place(path, row)}: column {name!r} is a number, and the cell holds {text!r}. Correct the cell, list the "
            "text under 'missing' in a schema file, or declare the column as category there."
        )
    values = np.asarray(column.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy())
    large = np.abs(values) >= LARGEST_WHOLE
    wrong = np.flatnonzero(large)
    if len(wrong) and (pa.types.is_integer(column.type) or bool((large | np.isnan(values)).all())):
        raise AtollError(
            f"{place(path, int(wrong[0]))}: column {name!r} holds {column[int(wrong[0])]}, which has too many digits "
            f"to compute with, as identifiers have. Leave it out with '?ignore={name}'."
        )
    return values


def _dates(path: Path, name: str, column: pa.ChunkedArray) -> Array:
    """Return days since 1970."""
    try:
        if is_numeric(column.type):
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
    fixed = schema.levels.get(name)
    missing = set(schema.missing_in(name)) - set(fixed or ())
    texts = [None if text in missing else text for text in texts]
    levels = fixed or tuple(sorted({text for text in texts if text is not None}))
    if None in texts and fixed is None and any(_PLUS.fullmatch(level) for level in levels):
        raise AtollError(
            f"{place(path, texts.index(None))}: column {name!r} holds '+' elsewhere, and '-' counts as an empty cell. "
            "Write words, such as positive and negative, or list all values of the column in a schema file."
        )
    code = {level: float(i) for i, level in enumerate(levels)}
    for row, text in enumerate(texts):
        if text is not None and text not in code:
            raise AtollError(
                f"{place(path, row)}: column {name!r} holds {text!r}, which the schema does not list "
                f"({', '.join(levels[:10])}). Correct the cell, or add the value to the schema."
            )
    values = np.array([np.nan if text is None else code[text] for text in texts])
    return Cells(Column(name, CATEGORY, levels, fixed is not None), values, declared)
