"""Look into the text of CSV files for messages: whether it is text, how cells are separated, in which line a row is."""

import csv
import re
from collections.abc import Iterator, Sequence
from operator import or_
from pathlib import Path

from ...errors import AtollError
from .notations import is_number

START = 1 << 16  # bytes that are looked at before a file is read
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_NUMBER = re.compile(r"[-+]?\d*\.\d+")


def place(path: Path, row: int) -> str:
    """Return the place of a row in a file, for messages: the line of a CSV, whose first line has the names."""
    if path.suffix != ".csv":
        return f"{path} row {row + 1}"
    records = (line for line, cells in _records(path) if cells)
    line = next((line for at, line in enumerate(records) if at == row + 1), row + 2)
    return f"{path} line {line}"


def check_text(path: Path) -> None:
    """Refuse a CSV that is no text in UTF-8, that has no commas between cells, or no names in its first line.

    Raises:
        AtollError: what is wrong, and the remedy.
    """
    with path.open("rb") as file:
        start = file.read(START)
    if b"\0" in start:
        raise AtollError(f"{path} is no text in UTF-8: it holds zero bytes. Save it as CSV with the encoding UTF-8.")
    first = start.removeprefix(b"\xef\xbb\xbf").splitlines()[0] if start.strip() else b""
    try:
        names = first.decode()
    except UnicodeDecodeError as reason:
        raise AtollError(
            f"{path} line 1: the names of columns are not UTF-8 text. Save the file with the encoding UTF-8."
        ) from reason
    if re.fullmatch(r"sep=.", names.strip()):
        raise AtollError(f"{path} line 1: {names.strip()!r} is no row of names. Remove the line.")
    for delimiter, word in OTHER_DELIMITERS.items():
        if delimiter in names and "," not in names:
            raise AtollError(
                f"{path} line 1: cells are separated by {word}. Save the file with commas between cells, and with "
                "points in numbers such as 1.5."
            )
    cells = [cell.strip() for cell in next(csv.reader([names]), [])]
    if _is_row_of_data(cells):
        raise AtollError(
            f"{path} line 1: {names.strip()!r} has numbers and no names of columns. Name the columns in the first line."
        )
    for at, name in enumerate(cells):
        if not name and len(cells) > 1:
            raise AtollError(f"{path} line 1: column {at + 1} has no name. Name it, or remove the column.")
        if _NUMBER.fullmatch(name):
            raise AtollError(f"{path} line 1: {name!r} is no name of a column. Name the columns in the first line.")


def _is_row_of_data(cells: Sequence[str]) -> bool:
    """Return True for cells that are numbers or marks such as '?'; columns called 0, 1, 2, ... do have names."""
    marks = [not any(map(str.isalnum, cell)) for cell in cells]
    numbers = [is_number(cell) for cell in cells]
    counted = [str(at) for at in range(len(cells))]
    return any(numbers) and all(map(or_, numbers, marks)) and list(cells) != counted


def uneven_line(path: Path) -> AtollError | None:
    """Return an error that names the first line with more or fewer cells than the first one, or None."""
    expected = 0
    for line, cells in _records(path):
        expected = expected or len(cells)
        if cells and len(cells) != expected:
            remedy = (
                "Remove lines above the names of columns."
                if expected == 1
                else "Correct the line, and put cells with commas into quotation marks."
            )
            return AtollError(f"{path} line {line}: {len(cells)} cells, where the first line has {expected}. {remedy}")
    return None


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of each record; a record has several lines if a cell in quotes has."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        line = 1
        while True:
            try:
                cells = next(reader)
            except (StopIteration, csv.Error):  # a cell of more than 131072 characters
                return
            yield line, cells
            line = reader.line_num + 1
