"""The table of scores: columns of clients that grow, can be undone and survive a checkpoint."""

import json
import math

import numpy as np

from atoll.clients.score_table import ScoreTable, to_columns, to_scores


def test_columns_and_scores_are_each_others_inverse() -> None:
    scores = [{"n": 2.0, "accuracy": 0.5}, {"n": 3.0, "accuracy": 1.0}]

    assert to_scores(to_columns(scores)) == scores


def test_later_scores_replace_earlier_ones_and_missing_ones_are_undefined() -> None:
    table = ScoreTable({"a": {"n": 1.0, "accuracy": 0.0}, "b": {"n": 2.0, "accuracy": 0.5}})
    table.update({"c": {"n": 3.0, "f1": 0.25}, "a": {"n": 1.0, "accuracy": 1.0}})

    assert table["a"]["accuracy"] == 1.0
    assert math.isnan(table["c"]["accuracy"])
    assert math.isnan(table["b"]["f1"])
    assert table.take(("c", "a"))["n"].tolist() == [3.0, 1.0]
    assert table.missing(["a", "d", "b", "e", "c"]) == ["d", "e"]


def test_undo_brings_back_all_that_changed_since_the_beginning() -> None:
    table = ScoreTable({"a": {"n": 1.0}, "b": {"n": 2.0}})
    table.begin()
    table.update({"a": {"n": 7.0}})
    table.update({"a": {"n": 8.0, "f1": 0.5}, "c": {"n": 3.0}})
    ids = ("a", "b")
    table.take(ids)
    table.undo()
    table.update({"d": {"n": 4.0}})

    assert table.take(ids)["n"].tolist() == [1.0, 2.0]
    assert "c" not in table
    assert len(table) == 3
    assert table["d"]["n"] == 4.0
    assert math.isnan(table["a"]["f1"])


def test_checkpoint_keeps_every_bit() -> None:
    columns = {"n": np.array([1.0, 2.0, 3.0]), "accuracy": np.array([1 / 3, math.nan, 5e-324])}
    table = ScoreTable()
    table.put(["a", "b", "c"], columns)
    again = ScoreTable.from_json(json.loads(json.dumps(table.to_json())))

    for name, column in columns.items():
        assert again.take(("a", "b", "c"))[name].tobytes() == column.tobytes()


def test_empty_table_survives_a_checkpoint() -> None:
    assert len(ScoreTable.from_json(ScoreTable().to_json())) == 0
