"""Labels of every problem, from tables, arrays and texts, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from atoll.core.problems import Classes, Labels, NextToken, Numbers
from atoll.data.dataset import Dataset
from atoll.data.federate import federate
from atoll.data.federated_dataset import FederatedDataset
from atoll.data.loading import load
from atoll.data.subset import keep_rows
from atoll.data.tables.agreed_labels import with_target_unit
from atoll.data.tables.federated import fit_clients
from atoll.data.tables.statistics import TableOptions
from atoll.errors import AtollError

TABLE = "a,fever,cough,price\n1,0,1,10\n2,1,1,20\n3,0,0,30\n4,1,0,40\n"


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


def test_several_label_columns_of_a_table_become_several_labels(table: str) -> None:
    data = load(f"{table}?label=fever,cough", task="multilabel")

    assert data.problem == Labels(2)
    assert data.classes == ("fever", "cough")
    assert data.y_train.tolist() == [[0, 1], [1, 1], [0, 0], [1, 0]]
    assert data.shape == (2,)  # a and price


def test_numbers_of_a_table_get_the_unit_of_the_training_rows(table: str) -> None:
    """Training prices 10 and 30: mean 20 and deviation 10; the test price 40 has no part in it."""
    data = load(f"{table}?label=price", task="regression")
    rows = tuple(np.array(part) for part in ([0, 2], [1], [3]))
    one = FederatedDataset(data, ("a",), (rows[0],), (rows[1],), (rows[2],), np.arange(0), (), "")

    assert data.y_train.tolist() == [[10.0], [20.0], [30.0], [40.0]]
    for rules, unit in ((TableOptions(), Numbers(1, (20.0,), (10.0,))), (TableOptions("no"), Numbers(1))):
        made = fit_clients(one, rules)
        assert with_target_unit(one, made.agreed).dataset.problem == unit


def test_label_with_a_comma_in_its_name_is_one_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('x,"a,b"\n1,0.5\n2,1.5\n')

    assert load(f"{path}?label=a,b", task="regression").classes == ("a,b",)


@pytest.mark.parametrize(
    ("query", "task", "said"),
    [
        ("?label=fever,cough", None, "names 2 columns.*--task multilabel"),
        (
            "?label=price,fever",
            "multilabel",
            "line 2: the label 10 in column 'price' is neither 0",
        ),
        ("?label=fever,couhg", "regression", "Did you mean 'cough'"),
        ("?label=price", "next-token", "plain text file"),
        ("?label=price", "regresion", "Did you mean 'regression'"),
        ("?label=price@0", "regression", "selects classes, but labels are numbers"),
    ],
)
def test_labels_that_do_not_suit_the_task_are_refused(table: str, query: str, task: str | None, said: str) -> None:
    with pytest.raises(AtollError, match=said):
        load(table + query, task=task)


def test_text_labels_are_refused_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,red\n2,blue\n")

    with pytest.raises(AtollError, match=r"t\.csv line 2: the label 'red' in column 'y' is no number"):
        load(str(path), task="regression")


def test_float_labels_of_classes_name_the_task_for_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2), np.float32), y=np.array([0.5, 1.0, 2.0]))

    with pytest.raises(AtollError, match=r"0.5 is no class.*--task regression"):
        load(str(tmp_path / "a.npz"))
    assert load(str(tmp_path / "a.npz"), task="regression").problem.outputs == 1


# -- plain text -------------------------------------------------------------------------------------------------------


def test_text_is_cut_into_windows_with_the_next_token_as_label(tmp_path: Path) -> None:
    """'abcab' has 4 tokens with a successor: two windows of 2. a, b, c are 0, 1, 2."""
    (tmp_path / "t.txt").write_text("abcab")

    data = load(f"{tmp_path}/t.txt?length=2")

    assert data.problem == NextToken(3, 2)
    assert data.classes == ("a", "b", "c")
    assert data.x_train.tolist() == [[0, 1], [2, 0]]
    assert data.y_train.tolist() == [[1, 2], [0, 1]]


def test_bytes_are_tokens_of_a_fixed_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("é!", encoding="utf-8")

    data = load(f"{tmp_path}/t.txt?tokens=bytes&length=2")

    assert data.problem == NextToken(256, 2)
    assert data.x_train.tolist() == [[0xC3, 0xA9]]
    assert data.y_train.tolist() == [[0xA9, 0x21]]


def test_files_of_a_folder_are_the_owners_of_their_windows(tmp_path: Path) -> None:
    (tmp_path / "anna.txt").write_text("aaaaaa")
    (tmp_path / "ben.txt").write_text("bbbbbbbb")

    data = load(f"{tmp_path}?length=1")

    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["anna"] * 5 + ["ben"] * 7
    assert federate(data, None, "natural").clients == ("anna", "ben")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?length=9", "3 tokens, too few"),
        ("?length=x", "must be a number of tokens"),
        ("?tokens=words", "Unknown tokens"),
    ],
)
def test_text_that_cannot_be_cut_is_refused(tmp_path: Path, query: str, said: str) -> None:
    (tmp_path / "t.txt").write_text("abc")

    with pytest.raises(AtollError, match=said):
        load(f"{tmp_path}/t.txt{query}")


# -- data sets and partitions -----------------------------------------------------------------------------------------


def numbers(rows: int = 40) -> Dataset:
    x, y = np.zeros((rows, 2), np.float32), np.arange(rows, dtype=np.float32)[:, None]
    return Dataset("numbers", "table", x, y, x[:0], y[:0], ("y",), problem=Numbers())


def test_number_of_classes_follows_from_their_names() -> None:
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2])

    assert Dataset("c", "table", x, y, x[:0], y[:0], ("a", "b", "c")).problem == Classes(3)


def test_labels_of_another_shape_than_the_problem_are_refused() -> None:
    x, y = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)

    with pytest.raises(AtollError, match=r"labels have shape \(3, 2\).*with 1 outputs needs \(3, 1\)"):
        Dataset("n", "table", x, y, x[:0], y[:0], ("y",), problem=Numbers())


def test_float_labels_of_a_data_set_with_classes_are_refused() -> None:
    x, y = np.zeros((3, 2), np.float32), np.array([0.0, 1.0, 1.0])

    with pytest.raises(AtollError, match=r"labels are float64, but classes are whole numbers.*problem=Numbers"):
        Dataset("n", "table", x, y, x[:0], y[:0], ("a", "b"))


@pytest.mark.parametrize("partition", ["dirichlet:0.5", "dirichlet:0.5:client", "pathological:2"])
def test_partition_by_class_is_refused_without_classes_or_single_numbers(partition: str) -> None:
    x, y = np.zeros((40, 2), np.float32), np.zeros((40, 2), np.float32)
    labels = Dataset("l", "table", x, y, x[:0], y[:0], ("a", "b"), problem=Labels(2))

    with pytest.raises(AtollError, match=r"divides samples by class, but labels are several.*iid, natural"):
        federate(labels, 4, partition)


def test_rows_without_classes_are_divided_split_and_set_aside() -> None:
    """40 rows, 4 of them public: 36 among 3 clients, 12 each, of which 1 is for validation and 1 for test."""
    x, y = np.zeros((40, 2), np.float32), np.zeros((40, 2), np.float32)
    labels = Dataset("l", "table", x, y, x[:0], y[:0], ("a", "b"), problem=Labels(2))

    made = federate(labels, 3, "iid", public=4)

    assert len(made.public) == 4
    assert [len(rows) for rows in made.train] == [10, 10, 10]
    assert made.holdings()["classes"] == ["all rows"]
    fewer = keep_rows(made, 11, None, np.random.default_rng(0))
    assert sum(map(len, fewer.train + fewer.val)) == 11


def test_single_numbers_are_grouped_into_ranges_of_equally_many_rows() -> None:
    """40 numbers 0 to 39 in ten ranges: the deciles of numpy lie at 3.9, 7.8, ..., 35.1, with four numbers each."""
    data = numbers()

    assert data.groups[0] == "up to 3.9"
    assert data.groups[-1] == "above 35.1"
    assert np.bincount(data.group_numbers(data.y_train)).tolist() == [4] * 10
    constant = Dataset(
        "c", "table", data.x_train, 0 * data.y_train, data.x_test, data.y_test, ("y",), problem=Numbers()
    )
    assert constant.groups == ("all rows",)


def test_partition_by_ranges_gives_clients_numbers_of_their_own() -> None:
    """Two of ten ranges for each of five clients: every client has at most 8 of the 40 numbers, in two ranges."""
    made = federate(numbers(), 5, "pathological:2")

    held = made.counts("train") + made.counts("val") + made.counts("test")
    assert ((held > 0).sum(1) == 2).all()
    assert not any("class" in note for note in made.notes)
