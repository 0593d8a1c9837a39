"""Tables with mistakes: each refusal names file, line, column and remedy, and what is inferred is noted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.config import Config
from atoll.data.loading import load
from atoll.engine.problem_options import load_data
from atoll.errors import AtollError

HEAD = "age,dose,colour,outcome,hospital"
ROWS = [f"{30 + i},{i / 7:.3f},{('red', 'blue')[i % 2]},{('ill', 'well')[i % 2]},{'abc'[i % 3]}" for i in range(60)]
QUERY = "?label=outcome&owner=hospital"

Cell = Callable[[int], str]


def column(at: int, cell: Cell) -> list[str]:
    """Return the table with other cells in one column."""
    rows = [row.split(",") for row in ROWS]
    return [HEAD, *(",".join([*row[:at], cell(i), *row[at + 1 :]]) for i, row in enumerate(rows))]


def line(number: int, at: int, cell: str) -> list[str]:
    """Return the table with another cell in one line."""
    row = ROWS[number - 2].split(",")
    return [HEAD, *ROWS[: number - 2], ",".join([*row[:at], cell, *row[at + 1 :]]), *ROWS[number - 1 :]]


def write(folder: Path, lines: list[str], encoding: str = "utf-8", ends: str = "\n") -> Path:
    path = folder / "t.csv"
    path.write_bytes((ends.join(lines) + ends).encode(encoding))
    return path


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([row.replace(",", ";") for row in [HEAD, *ROWS]], "line 1: cells are separated by semicolons.*commas"),
        ([row.replace(",", "\t") for row in [HEAD, *ROWS]], "line 1: cells are separated by tabs"),
        ([row.replace(",", ";").replace(".", ",") for row in [HEAD, *ROWS]], "separated by semicolons.*points"),
        ([HEAD.replace("dose", ""), *ROWS], "line 1: column 2 has no name"),
        ([HEAD.replace("dose", "age"), *ROWS], "several columns called 'age'"),
        (ROWS, "line 1: '0.000' is no name of a column.*first line"),
        ([HEAD, *ROWS[:3], "1,2,3", *ROWS[3:]], "line 5: 3 cells, where the first line has 5"),
        ([HEAD, *ROWS[:3], "", '1,2,"a\nb",ill,a', "", "1,2,3", *ROWS[3:]], "line 9: 3 cells"),
        (column(1, lambda i: f'"{i},5"'), r"line 2: column 'dose' has 60 different texts.*point, such as 1\.5.*ignore"),
        (column(1, lambda i: f"{i % 28 + 1}.{i // 28 + 1}.2021"), "line 2: column 'dose'.*Write dates as 2024-03-31"),
        (column(1, lambda i: "2021-13-45" if i == 4 else f"2021-01-{i % 28 + 1:02}"), "line 6: .*'dose'.*among dates"),
        (column(1, lambda i: f"note {i}"), "line 2: column 'dose' has 60 different texts.*'note 0'.*'.ignore=dose'"),
        ([HEAD, *column(1, lambda i: f"note {i}")[1:21]], "has 20 different texts in 20 rows"),
        (
            column(1, lambda i: "none yet" if i % 3 == 1 else f"{i / 7:.3f}"),
            "line 3: .* 'none yet' among numbers",
        ),
        (line(6, 1, "inf"), "line 6: column 'dose' holds infinity"),
        (line(6, 1, "1e400"), "line 6: column 'dose' holds infinity"),
        (line(6, 1, "1e300"), r"line 6: column 'dose' holds 1e\+300, which is too large"),
        (line(6, 4, ""), "line 6: column 'hospital' is empty"),
        (line(6, 3, "Ill"), "line 6: the label 'Ill' differs from 'ill' in capitals.*classes="),
        (line(6, 3, "ill "), "line 6: the label 'ill ' differs from 'ill' in capitals or spaces"),
        (column(3, lambda i: f"c{i}"), "the label column has 60 different values in 60 rows.*label="),
        (column(3, lambda i: "inf" if i == 4 else "1"), "line 6: the label inf in column 'outcome' is no class"),
        (column(4, lambda i: "1.5"), "line 2: column 'hospital' holds 1.5, which is no name of an owner"),
        ([f"{HEAD},split", *(f"{row},valid" for row in ROWS)], "line 2: column 'split' holds 'valid'"),
        (
            [f"{HEAD},split", *(f"{row},train" for row in ROWS), "1,2,red,dead,a,test"],
            r"line 62: the label 'dead' is not one of the 2 classes \(ill, well\).*classes=",
        ),
        ([HEAD], "5 columns and 0 rows.*Complete"),
    ],
)
def test_mistake_is_refused_with_its_place_and_a_remedy(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=rf"(?s)t\.csv.*{said}"):
        load(f"{write(tmp_path, lines)}{QUERY}")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (lambda i: "much", "line 2: the label 'much' in column 'outcome' is no number to predict.*leave out --task"),
        (lambda i: f'"{i},5"', r"line 2: the label '0,5' .* a point in numbers such as 1\.5"),
        (lambda i: "1e300" if i == 3 else str(i), r"line 5: the label 1e\+300"),
    ],
)
def test_target_that_is_no_number_is_refused_with_its_line(cell: Cell, said: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=rf"t\.csv {said}"):
        load(f"{write(tmp_path, column(3, cell))}{QUERY}", task="regression")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?label=outcome&owner=outcome", "column 'outcome' cannot be two of label, owner and ignored"),
        ("?label=outcome&ignore=outcome", "column 'outcome' cannot be two of"),
        ("?label=outcome&owner=hospital&ignore=colur", "Did you mean 'colour'"),
        ("?label=outcom", "Did you mean 'outcome'"),
        ("?label=outcome&classes=ill,dead", r"line 3: the label 'well' is not one of the 2 classes \(dead, ill\)"),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(query: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=said):
        load(f"{write(tmp_path, [HEAD, *ROWS])}{query}")


@pytest.mark.parametrize(
    ("encoding", "at", "said"),
    [
        ("latin-1", 2, "line 3: column 'colour' is not UTF-8"),
        ("latin-1", 3, "line 3: column 'outcome' is not UTF-8"),
        ("utf-16", 2, "is no text in UTF-8"),
    ],
)
def test_other_encoding_is_named(encoding: str, at: int, said: str, tmp_path: Path) -> None:
    lines = column(at, lambda i: "grün" if i % 2 else "rot")
    with pytest.raises(AtollError, match=said):
        load(f"{write(tmp_path, lines, encoding)}{QUERY}")


@pytest.mark.parametrize(
    ("encoding", "ends", "lines"),
    [
        ("utf-8-sig", "\n", [HEAD, *ROWS]),
        ("utf-8", "\r\n", [HEAD, *ROWS]),
        ("utf-8", "\n", [HEAD, *ROWS[:9], "", *ROWS[9:]]),
        ("utf-8", "\n", line(4, 2, '"red\nor blue"')),
    ],
)
def test_usual_forms_of_csv_are_read(encoding: str, ends: str, lines: list[str], tmp_path: Path) -> None:
    data = load(f"{write(tmp_path, lines, encoding, ends)}{QUERY}")

    assert len(data.y_train) == len(ROWS)
    assert [found.name for found in data.columns] == ["age", "dose", "colour"]


def test_line_of_a_dropped_row_counts_blank_lines_and_lines_in_quotes(tmp_path: Path) -> None:
    """The row without a label is in line 7: after the names, three rows, one of them in two lines, and a blank line."""
    lines = [HEAD, ROWS[0], '1,2,"a\nb",ill,a', ROWS[1], "", "1,2,red,,a", *ROWS[2:]]

    data = load(f"{write(tmp_path, lines)}{QUERY}")

    assert any("1 rows without a label were dropped" in note and "t.csv line 7" in note for note in data.notes)


def test_constant_columns_and_a_label_that_was_not_named_are_noted(tmp_path: Path) -> None:
    lines = [row.rpartition(",")[0] for row in column(1, lambda i: "5")]

    data = load(str(write(tmp_path, lines)))

    assert "Columns with the same value in all rows: dose." in data.notes
    assert "Taken as label, as the last column: outcome." in data.notes


def test_table_of_one_class_is_refused_in_a_simulation_and_read_at_a_site(tmp_path: Path) -> None:
    path = f"{write(tmp_path, column(3, lambda i: 'ill'))}{QUERY}"

    assert load(path).classes == ("ill",)
    with pytest.raises(AtollError, match=r"All rows of .* have the label 'ill'.*label="):
        load_data(Config(data=path))


def folder(path: Path, change: Callable[[list[str]], list[str]]) -> str:
    """Return a folder of three hospitals' files, of which the second is changed."""
    for name in "abc":
        lines = ["age,dose,colour,outcome", *(row[:-2] for row in ROWS if row.endswith(name))]
        lines = change(lines) if name == "b" else lines
        (path / f"{name}.csv").write_text("".join(f"{text}\n" for text in lines))
    return str(path)


@pytest.mark.parametrize(
    ("change", "query", "said"),
    [
        (lambda lines: [], "?label=outcome", r"b\.csv: Empty CSV file"),
        (lambda lines: lines[:1], "?label=outcome", r"b\.csv has 4 columns and 0 rows"),
        (
            lambda lines: [lines[0].replace("outcome", "y2"), *lines[1:]],
            "",
            r"b\.csv is y2 and that of .*a\.csv",
        ),
        (
            lambda lines: [lines[0].replace("outcome", "y2"), *lines[1:]],
            "?label=outcome",
            r"b\.csv 'outcome'",
        ),
        (
            lambda lines: [text.replace("ill", "1").replace("well", "0") for text in lines],
            "?label=outcome",
            r"b\.csv: the labels 0, 1 are in no other file",
        ),
        (
            lambda lines: [text.replace("ill", "Ill") for text in lines],
            "?label=outcome",
            r"b\.csv line \d+: .*'Ill'",
        ),
        (
            lambda lines: [lines[0], *(",".join([t.split(",")[0], "low", *t.split(",")[2:]]) for t in lines[1:])],
            "?label=outcome",
            r"Column 'dose' is a category in .*b\.csv and a number elsewhere",
        ),
        (lambda lines: [text.partition(",")[2] for text in lines], "?label=outcome", r"b\.csv has no column 'age'"),
    ],
)
def test_file_that_does_not_fit_the_others_is_named(
    change: Callable[[list[str]], list[str]], query: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=said):
        load(f"{folder(tmp_path, change)}{query}")
