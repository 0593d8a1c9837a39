"""The table of scores: columns of clients that grow, can be undone and survive a checkpoint."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from atoll.clients import score_table
from atoll.clients.score_table import (
    ClientModel,
    PendingScore,
    ScoreTable,
    decode_columns,
    encode_columns,
    settled,
    to_columns,
    to_scores,
)
from atoll.core.group_scores import Columns


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


def stored_and_restored(table: ScoreTable) -> ScoreTable:
    """The table as it is after a checkpoint, stored beside another one with the same columns."""
    data = encode_columns({"before": {"n": np.array([9.0])}, "after": table.columns()})
    return ScoreTable.restore(table.clients(), decode_columns(data).get("after", {}))


def test_checkpoint_keeps_every_bit() -> None:
    columns = {"n": np.array([1.0, 2.0, 3.0]), "accuracy": np.array([1 / 3, math.nan, 5e-324])}
    table = ScoreTable()
    table.put(["a", "b", "c"], columns)
    again = stored_and_restored(table)

    for name, column in columns.items():
        assert again.take(("a", "b", "c"))[name].tobytes() == column.tobytes()


def test_damaged_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="scores are damaged"):
        decode_columns(encode_columns({"after": {"n": np.ones(3)}})[:-1])


def test_empty_table_survives_a_checkpoint() -> None:
    assert len(stored_and_restored(ScoreTable())) == 0


class Evaluation:
    """Scores a model by its only weight, and counts the models of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, models: Sequence[ClientModel]) -> Columns:
        self.calls.append(len(models))
        return {"n": np.array([model.params["w"].item() for model in models])}

    def of(self, **values: float) -> dict[str, PendingScore]:
        return {i: PendingScore(ClientModel(i, {"w": torch.tensor(value)}), self) for i, value in values.items()}


def test_pending_scores_are_computed_together_when_one_is_read() -> None:
    evaluate, table = Evaluation(), ScoreTable({"a": {"n": 1.0}})
    table.update(evaluate.of(a=2.0, b=3.0))
    table.update(evaluate.of(b=4.0, c=5.0))

    assert (len(table), "c" in table, table.missing(list("abcd"))) == (3, True, ["d"])
    assert evaluate.calls == []
    assert table["b"]["n"] == 4.0
    assert evaluate.calls == [3]
    assert table.take(("c", "a"))["n"].tolist() == [5.0, 2.0]
    assert evaluate.calls == [3]


def test_score_that_is_known_replaces_a_pending_one() -> None:
    evaluate, table = Evaluation(), ScoreTable()
    table.update(evaluate.of(a=2.0))
    table.update({"a": {"n": 7.0}})

    assert table["a"]["n"] == 7.0
    assert evaluate.calls == []


@pytest.mark.parametrize("read", [False, True])
def test_undo_brings_back_scores_that_were_pending(read: bool) -> None:
    evaluate, table = Evaluation(), ScoreTable({"a": {"n": 1.0}})
    table.update(evaluate.of(b=2.0))
    table.begin()
    table.update(evaluate.of(a=3.0, b=4.0, c=5.0))
    if read:
        assert table.take(("a", "b", "c"))["n"].tolist() == [3.0, 4.0, 5.0]
    table.undo()

    assert "c" not in table
    assert table.take(("a", "b"))["n"].tolist() == [1.0, 2.0]


def test_models_are_scored_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_table, "PENDING_BYTES", 8)  # two weights
    evaluate, table = Evaluation(), ScoreTable()

    for i in "abcd":
        table.update(evaluate.of(**{i: 1.0}))

    assert evaluate.calls == [3]


def test_checkpoint_holds_scores_that_were_pending() -> None:
    table = ScoreTable()
    table.update(Evaluation().of(a=2.0))

    assert stored_and_restored(table)["a"]["n"] == 2.0


def test_settled_score_is_computed_once_and_others_are_left() -> None:
    evaluate = Evaluation()

    assert settled(evaluate.of(a=2.0)["a"]) == {"n": 2.0}
    assert settled({"n": 1.0}) == {"n": 1.0}
    assert settled(None) is None
