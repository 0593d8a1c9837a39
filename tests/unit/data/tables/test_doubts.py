"""What may be a mistake in a table is said, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.data.federate import federate
from atoll.data.loading import load

ROWS = 60
COLOURS = ("red", "blue", "green")
FAR = "Values far from all others, which a schema file can list under 'missing' if they mean empty cells"

Cell = Callable[[int], object]


def notes(folder: Path, options: str = "", **cells: Cell) -> list[str]:
    """Return the notes on a table without doubts, apart from the columns that are given."""
    made: dict[str, Cell] = {
        "age": lambda i: 20 + 7 * i % 50,
        "colour": lambda i: COLOURS[i % 7 % 3],
        "ward": lambda i: "ns"[i // 30],
        "outcome": lambda i: ("ill", "well")[i % 5 % 2],
    }
    made = {**{name: cell for name, cell in cells.items() if name not in made}, **made, **cells}
    lines = [",".join(made), *(",".join(str(cell(i)) for cell in made.values()) for i in range(ROWS))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return [
        note
        for note in load(f"{folder}/t.csv?label=outcome&owner=ward{options}").notes
        if not note.startswith(("Inferred", "Empty cells", "Columns with the same"))
    ]


def test_usual_table_has_no_doubts(tmp_path: Path) -> None:
    assert notes(tmp_path) == []


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            lambda i: 5000 + i,
            "Columns with a different whole number in each row, as identifiers have; '?ignore=' leaves them out: new.",
        ),
        (
            lambda i: i % 4,
            "Few different whole numbers, which a schema file can declare as category if they are codes: "
            "new (0, 1, 2, 3).",
        ),
        (
            lambda i: 20210301 + i % 28,
            "Numbers that may be dates, which are written as 2024-03-31: new (such as 20210301).",
        ),
        (lambda i: -9 if i % 6 == 0 else i / 7, f"{FAR}: new -9 (10 cells)."),
        (lambda i: 999 if i == 4 else 50 + i / 7, f"{FAR}: new 999 (1 cell)."),
        (lambda i: 0 if i % 6 == 0 else 200 + 3 * i % 90, f"{FAR}: new 0 (10 cells)."),
        (lambda i: "9999-12-31" if i % 6 == 0 else f"2021-03-{i % 20 + 1:02}", f"{FAR}: new 9999-12-31 (10 cells)."),
        (
            lambda i: "n.d." if i % 6 == 0 else i % 5,
            "Categories that are numbers except for some, which a schema file can list under 'missing': "
            "new 'n.d.' (10 of 60 cells).",
        ),
        (
            lambda i: f"{i % 4}5 mg",
            "Categories that begin with a number; if they are numbers, write units into the name of the column: "
            "new (such as '05 mg').",
        ),
        (
            lambda i: "pd"[i % 5 % 2],
            "Columns that give the label away, with one value for each class; '?ignore=' leaves them out: new.",
        ),
        (
            lambda i: (4 if i < 30 else 160) + i % 9 / 4,
            "Values that are far from those of all other owners, as in another unit: "
            "new at n (4 to 6, elsewhere 160 to 162).",
        ),
    ],
)
def test_doubt_about_a_column_is_said(cell: Cell, said: str, tmp_path: Path) -> None:
    assert notes(tmp_path, new=cell) == [said]


@pytest.mark.parametrize(
    "cell",
    [
        lambda i: 0 if i % 3 else i,  # a count, with many zeros
        lambda i: i / 9,
        lambda i: ("1A", "2B", "none")[i % 3],
        lambda i: f"2021-03-{i % 28 + 1:02}",
        lambda i: (60 if i < 30 else 90) + i % 9,  # older patients in one ward
        lambda i: "" if i % 2 else i % 3 / 2,
    ],
)
def test_usual_column_is_not_doubted(cell: Cell, tmp_path: Path) -> None:
    assert notes(tmp_path, new=cell) == []


def test_names_of_columns_that_differ_in_capitals_alone_are_said(tmp_path: Path) -> None:
    (found,) = notes(tmp_path, Age=lambda i: i / 7)

    assert found == "Two columns whose names differ in capitals or spaces alone: 'Age' and 'age'."


def test_copies_of_rows_are_said_with_the_place_of_the_first(tmp_path: Path) -> None:
    """Row 50 is a copy of row 10, in line 52 of the file. Row 5 is equal too, but of another owner."""
    copied = {50: 10, 5: 10}

    found = notes(
        tmp_path,
        dose=lambda i: copied.get(i, i) / 7,
        age=lambda i: copied.get(i, i) + 20.5,
        colour=lambda i: COLOURS[copied.get(i, i) % 3],
        ward=lambda i: "s" if i in (10, 50) else "n",
        outcome=lambda i: ("ill", "well")[copied.get(i, i) % 2],
    )

    assert found == ["1 row is equal to an earlier row of the same owner in every column (first: t.csv line 52)."]


def test_owners_with_the_same_rows_or_with_other_numbers_as_labels_are_said(tmp_path: Path) -> None:
    """North calls healthy and ill 0 and 1, south 1 and 2."""
    same = notes(
        tmp_path,
        age=lambda i: i % 30 / 7,
        colour=lambda i: COLOURS[i % 30 % 7 % 3],
        outcome=lambda i: ("ill", "well")[i % 30 % 4 % 3 % 2],
    )
    other = notes(tmp_path, outcome=lambda i: i // 30 + i % 5 % 2)

    assert same == ["The rows of s are those of n. Is one a copy of the other?"]
    assert other == ["Labels of n are 0, 1, and those of all others 1, 2. Do they mean the same?"]


def test_rare_classes_are_said(tmp_path: Path) -> None:
    cells: Cell = lambda i: 9 if i == 7 else i % 5 % 2  # noqa: E731

    assert notes(tmp_path, outcome=cells) == [
        "Classes of few rows: 9 (1). Correct such labels, or empty the cells to leave the rows out."
    ]
    assert notes(tmp_path, "&classes=0,1,9", outcome=cells) == []


def test_column_of_texts_names_the_columns_that_are_not_used(tmp_path: Path) -> None:
    found = notes(tmp_path, text=lambda i: f"patient {i} is well")

    assert found == ["Column text makes a data set of texts. Not used: age, colour."]


def test_declared_kinds_and_bounds_end_doubts(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("columns: {code: number, year: {min: 0, max: 9999}}\n")

    found = notes(tmp_path, "&schema=s.yaml", code=lambda i: i % 4, year=lambda i: 9999 if i == 3 else 2000 + i % 9)

    assert found == []


def test_notes_of_a_stored_partition_are_those_of_the_file_today(tmp_path: Path) -> None:
    """The same rows are read from a file with a row more, which has no label."""
    lines = [f"{i / 7},{i % 3 / 2},{i % 2},{'ab'[i // 20]}" for i in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["age,dose,y,owner", *lines]) + "\n")
    federate(load(str(path)), None, "natural", cache=tmp_path / "kept")
    path.write_text("\n".join(["age,dose,y,owner", *lines, "1,2,,a"]) + "\n")

    again = federate(load(str(path)), None, "natural", cache=tmp_path / "kept")

    assert sum(note.startswith("1 rows without a label were dropped") for note in again.notes) == 1
    assert sum(note.startswith("Inferred as number") for note in again.notes) == 1
