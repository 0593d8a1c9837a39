"""Raw files as hospitals have them: kinds of columns, gaps, schemas, folders, and refusals with line and column."""

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from atoll.config import Config
from atoll.data.dataset import Dataset
from atoll.data.loading import load
from atoll.data.tables.columns import Column
from atoll.data.tables.description import ColumnFacts, describe_columns
from atoll.engine.setup import build_setup
from atoll.errors import AtollError

RAW = """age,weight,sex,seen,smoker,remark,label
63,?,m,2020-01-02,true,,0
67,80.5,f,,false,NA,1
,79,m,1970-01-11,true,?,1
"""


def table(folder: Path, content: str, name: str = "t.csv") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    return str(folder / name)


def schema(folder: Path, content: str) -> str:
    (folder / "schema.yaml").write_text(content)
    return "schema=schema.yaml"


def test_kinds_are_inferred_from_cells(tmp_path: Path) -> None:
    """2 January 2020 is day 18,263 after 1 January 1970, and 11 January 1970 is day 10."""
    data = load(table(tmp_path, RAW))

    kinds = {column.name: column.kind for column in data.columns}
    assert kinds == {
        "age": "number", "weight": "number", "sex": "category", "seen": "date", "smoker": "number", "remark": "empty",
    }  # fmt: skip
    nan = float("nan")
    expected = [[63, nan, 1, 18263, 1, nan], [67, 80.5, 0, nan, 0, nan], [nan, 79, 1, 10, 1, nan]]
    np.testing.assert_array_equal(data.x_train, expected)
    assert data.columns[2].levels == ("f", "m")


def test_what_was_inferred_is_in_the_notes(tmp_path: Path) -> None:
    notes = load(table(tmp_path, RAW + "1,2,m,,true,,?\n")).notes

    assert notes == (
        f"1 rows without a label were dropped (first: {tmp_path}/t.csv line 5).",
        "Inferred as number: age, weight, smoker.",
        "Inferred as date: seen.",
        "Inferred as category: sex.",
        "Columns without a value: remark.",
        "Empty cells, which are filled (--missing): age 1, weight 1, seen 2, remark 4.",
    )


def test_columns_are_described_with_their_values(tmp_path: Path) -> None:
    assert describe_columns(load(table(tmp_path, RAW)))[1:] == [
        ColumnFacts("weight", "number", "79 to 80.5", 1),
        ColumnFacts("sex", "category", "f, m", 0),
        ColumnFacts("seen", "date", "1970-01-11 to 2020-01-02", 1),
        ColumnFacts("smoker", "number", "0 to 1", 0),
        ColumnFacts("remark", "empty", "no value", 3),
    ]


def test_a_schema_declares_what_would_be_inferred(tmp_path: Path) -> None:
    path = table(tmp_path, "id,cp,thal,seen,num\n7,1.0,3,2020-01-02,0\n8,4,-9,2020-01-03,2\n9,1,7,2020-01-04,4\n")
    options = schema(
        tmp_path,
        """
        label: num
        missing: ["-9"]
        classes: {absent: [0], present: [1, 2, 3, 4]}
        columns: {id: ignore, cp: category, thal: [3, 6, 7]}
        """,
    )

    data = load(f"{path}?{options}")

    assert data.classes == ("absent", "present")
    assert data.y_train.tolist() == [0, 1, 1]
    assert data.columns[:2] == (Column("cp", "category", ("1", "4")), Column("thal", "category", ("3", "6", "7"), True))
    np.testing.assert_array_equal(data.x_train[:, :2], [[0, 0], [1, float("nan")], [0, 2]])


def test_parquet_has_the_kinds_of_its_types(tmp_path: Path) -> None:
    made = pa.table(
        {
            "sex": pa.array(["f", "m", None]).dictionary_encode(),
            "seen": [date(1970, 1, 2), None, date(1970, 1, 3)],
            "dose": [1, None, 3],
            "outcome": ["ill", "well", "ill"],
        }
    )
    pa.parquet.write_table(made, tmp_path / "t.parquet")

    data = load(str(tmp_path / "t.parquet"))

    assert [column.kind for column in data.columns] == ["category", "date", "number"]
    nan = float("nan")
    np.testing.assert_array_equal(data.x_train, [[0, 1, 1], [1, nan, nan], [nan, 2, 3]])
    assert data.classes == ("ill", "well")


def test_a_folder_joins_columns_that_one_file_leaves_empty(tmp_path: Path) -> None:
    table(tmp_path, "a,b,y\n1,?,0\n2,?,1\n", "north.csv")
    table(tmp_path, "b,a,y\nred,3,1\nblue,4,0\n", "south.csv")

    data = load(str(tmp_path))

    assert data.columns == (Column("a", "number"), Column("b", "category", ("blue", "red")))
    nan = float("nan")
    np.testing.assert_array_equal(data.x_train, [[1, nan], [2, nan], [3, 1], [4, 0]])
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["north", "north", "south", "south"]


def test_owners_of_the_data_are_the_clients_unless_a_partition_is_named(tmp_path: Path) -> None:
    lines = [f"{i},{'ab'[i % 2]},{i % 3}" for i in range(40)]
    path = table(tmp_path, "x,owner,y\n" + "\n".join(lines) + "\n")

    made = build_setup(Config(data=path))

    assert made.federation.clients == ("a", "b")
    assert made.config.partition == "natural"
    assert len(build_setup(Config(data=path, partition="iid", clients=3)).pool.ids) == 3
    assert build_setup(Config(data="digits", rows=100)).config.partition == "dirichlet:0.5"


def test_categories_of_no_training_row_are_noted(tmp_path: Path) -> None:
    lines = [f"{i},c{i if i < 10 else 0},{i % 2}" for i in range(40)]
    path = table(tmp_path, "x,odd,y\n" + "\n".join(lines) + "\n")

    (note,) = [note for note in build_setup(Config(data=path, clients=2)).notes if "Categories" in note]

    assert "whose cells count as empty: odd c" in note


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("a,y\n1,0\n2\n", "", r"t\.csv line 3: 1 cells, where the first line has 2"),
        ("a,y\n1,0\nx,1\n", "columns: {a: number}", r"t\.csv line 3: column 'a' is a number, and the cell holds 'x'"),
        ("a,y\n1,0\nx,1\n", "columns: {a: date}", r"t\.csv line 3: column 'a' is a date"),
        (
            "a,y\nu,0\nv,1\n",
            "columns: {a: [u]}",
            r"t\.csv line 3: column 'a' holds 'v', which the schema does not list",
        ),
        ("a,y\n1,0\n2,3\n", "classes: {n: [0], p: [1]}", r"t\.csv line 3: the label is '3', which no class"),
        ("a,y\n1,0\n2,1.5\n", "", r"t\.csv line 3: the label 1.5 in column 'y' is no class"),
        ("a,y\n1,0\n", "columns: {b: number}", r"Unknown column 'b' of .*t\.csv"),
        ("a,y\n1,0\n", "columns: {a: nummer}", "Did you mean 'number'"),
        ("a,y\n1,0\n", "colums: {}", "Did you mean 'columns'"),
        ("a,y\n1,0\n", "columns: [a]", "'columns' has an entry for each column"),
        ("a,y\n1,0\n", "classes: {n: [0, 0]}", "lists a value twice"),
        ("a,y\n1,0\n", "- a", "has no entries"),
        ("a,y\n1,0\n", "{", "Cannot read the schema"),
    ],
)
def test_refusals_name_file_line_and_column(content: str, options: str, said: str, tmp_path: Path) -> None:
    path = table(tmp_path, content)
    with pytest.raises(AtollError, match=said):
        load(f"{path}?{schema(tmp_path, options)}" if options else path)


def test_names_and_free_text_are_no_categories(tmp_path: Path) -> None:
    path = table(tmp_path, "name,x,y\n" + "".join(f"person {i},{i},{i % 2}\n" for i in range(60)))

    with pytest.raises(AtollError, match=r"t\.csv line 2: column 'name' has 60 different texts.*\?ignore=name"):
        load(path)
    assert names(load(f"{path}?ignore=name")) == ["x"]


def test_files_of_a_folder_that_disagree_are_named(tmp_path: Path) -> None:
    table(tmp_path, "a,y\n1,0\n", "north.csv")
    table(tmp_path, "a,b,y\n1,2,0\n", "south.csv")
    with pytest.raises(AtollError, match=r"north\.csv has no column 'b', which .*south\.csv has"):
        load(str(tmp_path))
    table(tmp_path, "a,y\nx,0\n", "south.csv")
    with pytest.raises(AtollError, match=r"south\.csv line 2: .*'a' holds 'x', and in .*north\.csv it holds"):
        load(str(tmp_path))


def names(data: Dataset) -> list[str]:
    return [column.name for column in data.columns]


def test_texts_in_parquet_are_read_like_those_of_a_csv(tmp_path: Path) -> None:
    """Numbers, dates and empty cells may be stored as texts; a text with a comma and a line break stays one cell."""
    cells = {
        "age": ["63", "?", "67"], "seen": ["2020-01-02", "", "1970-01-11"], "ward": ["a, b", "c\nd", "a, b"],
        "label": [0, 1, 1],
    }  # fmt: skip
    pa.parquet.write_table(pa.table(cells), tmp_path / "t.parquet")

    data = load(str(tmp_path / "t.parquet"))

    assert [(column.name, column.kind) for column in data.columns] == [
        ("age", "number"), ("seen", "date"), ("ward", "category")
    ]  # fmt: skip
    assert np.isnan(data.x_train[1, :2]).all()
    assert data.x_train[0, :2].tolist() == [63, 18_263]
    assert data.columns[2].levels == ("a, b", "c\nd")


def test_a_text_among_numbers_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = [f"{20 + i},{i % 2}" for i in range(30)]
    lines[7] = "abc,1"
    with pytest.raises(AtollError, match=r"t\.csv line 9: column 'age' holds 'abc' among numbers"):
        load(table(tmp_path, "age,label\n" + "\n".join(lines) + "\n"))


def test_a_few_codes_with_a_text_are_a_category(tmp_path: Path) -> None:
    lines = [f"{i % 3},{i % 2}" for i in range(30)]
    lines[7] = "unknown,1"
    data = load(table(tmp_path, "grade,label\n" + "\n".join(lines) + "\n"))
    assert data.columns[0].levels == ("0", "1", "2", "unknown")


def test_a_division_is_named_after_the_table_and_not_after_its_schema(tmp_path: Path) -> None:
    path = table(tmp_path, "age,label\n" + "".join(f"{20 + i},{i % 2}\n" for i in range(12)))
    schema(tmp_path, "label: label\n")

    federation = build_setup(Config(data=f"{path}?schema={tmp_path}/schema.yaml", clients=2)).federation

    assert federation.recipe.startswith("t.csv?schema=schema.yaml (")
