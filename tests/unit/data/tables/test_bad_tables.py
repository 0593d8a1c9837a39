"""Tables with mistakes: each refusal names file, line, column and remedy, and what is inferred is noted."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
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
        ([HEAD.replace("dose", "age"), *ROWS], "line 1: there are several columns called 'age'"),
        (ROWS, "line 1: '0.000' is no name of a column.*first line"),
        ([HEAD, *ROWS[:3], "1,2,3", *ROWS[3:]], "line 5: 3 cells, where the first line has 5"),
        ([HEAD, *ROWS[:3], "", '1,2,"a\nb",ill,a', "", "1,2,3", *ROWS[3:]], "line 9: 3 cells"),
        (
            column(1, lambda i: f'"{i},5"'),
            r"line 2: column 'dose' holds '0,5'\. Write numbers with a point, such as 1\.5",
        ),
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
        (column(3, lambda i: f"c{i}"), "the label column has 60 different values in 60 rows.*label="),
        (column(3, lambda i: "inf" if i == 4 else "1"), "line 6: the label inf in column 'outcome' is no class"),
        (column(4, lambda i: "1.5"), "line 2: column 'hospital' holds 1.5, which is no name of an owner"),
        ([f"{HEAD},split", *(f"{row},valid" for row in ROWS)], "line 2: column 'split' holds 'valid'"),
        (
            [f"{HEAD},split", *(f"{row},train" for row in ROWS), "1,2,red,dead,a,test"],
            r"line 62: the label 'dead' is not one of the 2 classes \(ill, well\).*classes=",
        ),
        ([HEAD], "5 columns and 0 rows.*Complete"),
        (["28,1,2,?,0", *ROWS], r"line 1: '28,1,2,\?,0' has numbers and no names of columns.*first line"),
        (["My study", HEAD, *ROWS], "line 2: 5 cells, where the first line has 1. Remove lines above"),
        (column(0, lambda i: str(2**60 + i)), "line 2: column 'age' holds 1152921504606846976.*'.ignore=age'"),
        (
            column(1, lambda i: f'"{i % 4},5"'),
            r"line 2: column 'dose' holds '0,5'\. Write numbers with a point.*schema",
        ),
        (
            column(1, lambda i: f"{i % 5 + 1}/1/2021"),
            "line 2: column 'dose' holds '1/1/2021'. Write dates as 2024-03-31",
        ),
        (
            column(1, lambda i: f"2021-01-0{i % 5 + 1}" if i % 2 else "3.1.2021"),
            "line 2: column 'dose' holds '3.1.2021'. Write dates",
        ),
        (column(1, lambda i: f"10:{i:02}"), r"line 2: column 'dose' holds time32\[s\].*'.ignore=dose'"),
        (column(1, lambda i: f'"{i + 1},{i:03},{i:03}"'), r"line 2: column 'dose' holds '1,000,000'\. .* thousands"),
        (column(1, lambda i: f"{i + 1} {i:03}"), r"line 2: column 'dose' holds '1 000'\. Write numbers with a point"),
        (column(1, lambda i: f"{i + 1}'{i:03}"), "line 2: column 'dose' holds \"1'000\". Write numbers with a point"),
        (column(1, lambda i: f"{i % 5}0%"), "line 2: column 'dose' holds '00%'. Write numbers"),
        (column(1, lambda i: f"${i % 5}.50"), r"line 2: column 'dose' holds '\$0.50'. Write numbers"),
        (column(1, lambda i: f"\u2212{i % 5}"), "line 2: column 'dose' holds '\u22120'. Write numbers"),
        (column(1, lambda i: f"{i % 5 + 1}-MAR-21"), "line 2: column 'dose' holds '1-MAR-21'. Write dates"),
        (column(1, lambda i: f"2021-0{i % 5 + 1}"), "line 2: column 'dose' holds '2021-01'. Write dates"),
        (
            column(1, lambda i: "#DIV/0!" if i % 9 == 4 else f"{i}"),
            "line 6: column 'dose' holds '#DIV/0!' among numbers",
        ),
        (column(1, lambda i: "<0.5" if i % 9 == 4 else f"{i}"), "line 6: column 'dose' holds '<0.5' among numbers"),
        (column(1, lambda i: f"{i} mg" if i == 4 else f"{i}"), "line 6: column 'dose' holds '4 mg' among numbers"),
        (
            column(1, lambda i: "++-"[i % 3]),
            r"line 4: column 'dose' holds '\+' elsewhere, and '-' counts as an empty cell",
        ),
        (column(1, lambda i: f"{10**20 + i}"), r"line 2: column 'dose' holds 1e\+20, which has too many digits"),
        (column(3, lambda i: ("gr\u00fcn", "gru\u0308n")[i % 2]), "line 3: the label .* in capitals or spaces alone"),
        (["sep=,", HEAD, *ROWS], "line 1: 'sep=,' is no row of names. Remove the line"),
        ([HEAD, "years,mg,name,class,a", *ROWS], "line 2: column 'age' holds 'years' among numbers"),
        ([HEAD, *ROWS, "Total,12,,,"], "line 62: column 'age' holds 'Total' among numbers"),
        ([HEAD, *ROWS, "Source: ward 5"], "line 62: 1 cells, where the first line has 5"),
        ([f"{line}," for line in [HEAD, *ROWS]], "line 1: column 6 has no name"),
        ([HEAD, *(f"{line}," for line in ROWS)], "line 2: 6 cells, where the first line has 5"),
        ([HEAD, *ROWS[:9], '1,2,"red,ill,a', *ROWS[9:]], "line 11: .* cells, where the first line has 5"),
        (column(3, lambda i: f"2021-01-0{i % 3 + 1}"), "line 2: the label 2021-01-01 in column 'outcome' is neither"),
        (column(4, lambda i: f"2021-01-0{i % 3 + 1}"), "line 2: column 'hospital' holds 2021-01-01, which is no name"),
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
        ("?label=outcome&label=age", "label is given twice"),
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
        ("utf-8", "\n", [row.replace(",", ", ") for row in [HEAD, *ROWS]]),
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


def test_spaces_around_cells_do_not_count(tmp_path: Path) -> None:
    lines = [row.replace(",", ", ") for row in line(6, 1, "?")]

    data = load(f"{write(tmp_path, lines)}{QUERY}")

    assert data.classes == ("ill", "well")
    assert data.owner_train is not None
    assert set(data.owner_train.tolist()) == set("abc")
    assert np.isnan(data.x_train[:, 1]).tolist() == [at == 4 for at in range(60)]


def test_names_that_differ_in_capitals_alone_are_noted(tmp_path: Path) -> None:
    rows = [row.replace("red", "Red" if at < 9 else "red") for at, row in enumerate(ROWS)]
    rows[0] = rows[0][:-1] + rows[0][-1].upper()

    data = load(f"{write(tmp_path, [HEAD, *rows])}{QUERY}")

    assert "Categories of colour that differ in capitals or spaces alone: 'Red' and 'red'." in data.notes
    assert "Two owners whose names differ in capitals or spaces alone: 'A' and 'a'." in data.notes


def test_truth_values_as_labels_keep_their_names(tmp_path: Path) -> None:
    data = load(f"{write(tmp_path, column(3, lambda i: ('true', 'false')[i % 2]))}{QUERY}")

    assert data.classes == ("false", "true")
    assert data.y_train[:3].tolist() == [1, 0, 1]


def test_number_for_an_empty_cell_counts_in_any_notation_and_format(tmp_path: Path) -> None:
    """The schema says -9; a CSV has -9.0 among floats, and a Parquet file the number."""
    (tmp_path / "s.yaml").write_text("missing: [-9]\n")
    (tmp_path / "t.csv").write_text(
        "age,dose,y\n" + "".join(f"{20 + i},{i / 2 if i else '-9.0'},{i % 2}\n" for i in range(9))
    )
    table = {"age": [20, -9, 22], "dose": [-9.0, 1.5, 2.0], "y": [0, 1, 1]}
    pa.parquet.write_table(pa.table(table), tmp_path / "t.parquet")

    found = load(f"{tmp_path}/t.csv?schema=s.yaml"), load(f"{tmp_path}/t.parquet?schema=s.yaml")

    assert np.isnan(found[0].x_train).sum() == 1
    assert np.isnan(found[0].x_train[0, 1])
    assert np.argwhere(np.isnan(found[1].x_train)).tolist() == [[0, 1], [1, 0]]


def test_text_that_means_an_empty_cell_is_a_value_where_the_user_lists_it(tmp_path: Path) -> None:
    """Severities 'None' and 'mild', marks '-' and '+', and labels 'None' and 'ill'."""
    (tmp_path / "s.yaml").write_text('columns:\n  pain: ["None", mild]\n  mark: ["-", "+"]\nlabel: y\n')
    lines = [f"{i},{('None', 'mild')[i % 2]},{('-', '+')[i % 2]},{('None', 'ill')[i % 2]}" for i in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["age,pain,mark,y", *lines]) + "\n")

    data = load(f"{tmp_path}/t.csv?schema=s.yaml&classes=None,ill")

    assert data.x_train[:2].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert data.classes == ("None", "ill")
    assert not any("Empty cells" in note for note in data.notes)


def test_schema_makes_cells_of_one_column_empty(tmp_path: Path) -> None:
    """0 is no cholesterol, but an age and a dose; 'none' is no dose."""
    (tmp_path / "s.yaml").write_text("columns:\n  chol: {missing: [0]}\n  dose: {min: 0, max: 9, missing: [none]}\n")
    rows = [f"{i},{0 if i < 3 else 200 + i},{'none' if i == 8 else i},{i % 2}" for i in range(9)]
    (tmp_path / "t.csv").write_text("\n".join(["age,chol,dose,y", *rows]) + "\n")

    data = load(f"{tmp_path}/t.csv?schema=s.yaml")

    assert np.isnan(data.x_train).sum(0).tolist() == [0, 3, 1]
    assert data.columns[2].bounds == (0, 9)
    assert "Empty cells, which are filled (--missing): chol 3, dose 1." in data.notes


def test_wide_spaces_around_numbers_do_not_count(tmp_path: Path) -> None:
    data = load(f"{write(tmp_path, column(1, lambda i: chr(160) + str(i)))}{QUERY}")

    assert data.columns[1].kind == "number"
    assert data.x_train[:3, 1].tolist() == [0, 1, 2]


def test_parquet_labels_of_a_data_base_are_read_and_nested_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"age": [1, 2], "y": [Decimal(0), Decimal(1)]}), path)
    assert load(str(path)).classes == ("0", "1")
    pa.parquet.write_table(pa.table({"age": [1, 2], "y": [[0], [1]]}), path)
    with pytest.raises(AtollError, match=r"t\.parquet row 1: the label \[0\] in column 'y' is neither"):
        load(str(path))
    pa.parquet.write_table(pa.table({"age": [None, [2]], "y": [0, 1]}), path)
    with pytest.raises(AtollError, match=r"t\.parquet row 2: column 'age' holds list"):
        load(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("columns:\n\tage: number\n", r"s\.yaml' line 2: found character"),
        ("columns:\n  age: number\n  age: category\n", r"s\.yaml' line 3: 'age' is given twice"),
        ("classes: {a: [ill], b: [ill, well]}\n", "two of the 'classes' have the label 'ill'"),
        ("columns: {age: {missing: 0}}\n", r"s\.yaml: 'age' is a list of values, not '0'"),
        ("columns: {aeg: {missing: [0]}}\n", "Did you mean 'age'"),
        ("columns: {age: date}\n", r"t\.csv line 2: column 'age' is a date"),
        ("columns: {colour: [yes, no]}\n", r"t\.csv line 2: .* 'red', which the schema does not list \(yes, no\)"),
    ],
)
def test_mistake_in_a_schema_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(AtollError, match=said):
        load(f"{write(tmp_path, [HEAD, *ROWS])}{QUERY}&schema=s.yaml")


@pytest.mark.parametrize("name", ["t.CSV", "t.csv.gz", "t.xlsx"])
def test_file_of_another_format_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a,y\n1,0\n")
    with pytest.raises(AtollError, match=r"unknown format.*unpack archives.*ends in \.csv"):
        load(str(tmp_path / name))


def test_constant_columns_and_a_label_that_was_not_named_are_noted(tmp_path: Path) -> None:
    lines = [row.rpartition(",")[0] for row in column(1, lambda i: "5")]

    data = load(str(write(tmp_path, lines)))

    assert "Columns with the same value in all rows: dose." in data.notes
    assert "Taken as label, as the last column: outcome." in data.notes


def test_table_of_one_class_is_refused_in_a_simulation_and_read_at_a_site(tmp_path: Path) -> None:
    path = f"{write(tmp_path, column(3, lambda i: 'ill'))}{QUERY}"

    assert load(path).classes == ("ill",)
    with pytest.raises(AtollError, match=r"All samples of .* have the label 'ill'.*label="):
        load_data(Config(data=path))


def folder(path: Path, change: Callable[[list[str]], list[str]]) -> str:
    """Return a folder of three hospitals' files, of which the second is changed."""
    for name in "abc":
        lines = ["age,dose,colour,outcome", *(row[:-2] for row in ROWS if row.endswith(name))]
        lines = change(lines) if name == "b" else lines
        (path / f"{name}.csv").write_text("".join(f"{text}\n" for text in lines))
    return str(path)


def test_folder_names_files_that_it_does_not_read(tmp_path: Path) -> None:
    where = folder(tmp_path, lambda lines: lines)
    (tmp_path / "d.xlsx").write_bytes(b"PK")
    (tmp_path / "._a.csv").write_bytes(b"\0\5")  # beside a.csv on the disks of some systems

    data = load(f"{where}?label=outcome")

    assert data.notes[-1] == "Not read, because they are no .csv or .parquet files: d.xlsx."
    assert data.owner_train is not None
    assert set(data.owner_train.tolist()) == set("abc")


def test_folder_names_a_schema_that_is_not_used(tmp_path: Path) -> None:
    where = folder(tmp_path, lambda lines: lines)
    (tmp_path / "s.yaml").write_text("columns: {colour: category}\n")

    unused, used = load(f"{where}?label=outcome"), load(f"{where}?label=outcome&schema=s.yaml")

    assert unused.notes[-1] == "Not read: s.yaml. A schema file is read with '?schema='."
    assert not any("s.yaml" in note for note in used.notes)


def test_folder_with_two_files_of_one_owner_is_refused(tmp_path: Path) -> None:
    where = folder(tmp_path, lambda lines: lines)
    pa.parquet.write_table(pa.table({"age": [1], "outcome": ["ill"]}), tmp_path / "a.parquet")
    with pytest.raises(AtollError, match=r"two files of the owner 'a': a\.csv and a\.parquet"):
        load(f"{where}?label=outcome")


@pytest.mark.parametrize(("query", "said"), [("?label=y", "no file that ends in"), ("", "one table for each owner")])
def test_folder_without_tables_says_what_belongs_there(query: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "north.data").write_text("1,2\n")
    with pytest.raises(AtollError, match=said):
        load(f"{tmp_path}{query}")


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
            r"Unknown column 'outcome' of .*b\.csv",
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
            r"b\.csv line 2: column 'dose' holds 'low', and in .*c\.csv it holds numbers",
        ),
        (
            lambda lines: [
                lines[0],
                *(",".join([t.split(",")[0], "2021-03-01", *t.split(",")[2:]]) for t in lines[1:]),
            ],
            "?label=outcome",
            r"a\.csv line 2: column 'dose' holds 0, and in .*b\.csv it holds dates",
        ),
        (lambda lines: [text.partition(",")[2] for text in lines], "?label=outcome", r"b\.csv has no column 'age'"),
    ],
)
def test_file_that_does_not_fit_the_others_is_named(
    change: Callable[[list[str]], list[str]], query: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=said):
        load(f"{folder(tmp_path, change)}{query}")
