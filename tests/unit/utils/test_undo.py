"""A dictionary whose changes can be undone."""

from atoll.utils.undo import UndoDict


def test_undo_brings_back_changed_entries_and_removes_new_ones() -> None:
    table = UndoDict({"a": 1, "b": 2})
    table.begin()
    table["a"] = 5
    table["a"] = 6
    table["c"] = 7
    table.undo()

    assert table == {"a": 1, "b": 2}


def test_changes_before_the_beginning_stay() -> None:
    table = UndoDict({"a": 1})
    table["a"] = 2
    table.begin()
    table["b"] = 3
    table.undo()

    assert table == {"a": 2}


def test_undoing_twice_changes_nothing_more() -> None:
    table = UndoDict({"a": 1})
    table.begin()
    table["a"] = 2
    table.undo()
    table["a"] = 3
    table.begin()
    table.undo()

    assert table == {"a": 3}
