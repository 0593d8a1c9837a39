"""Payloads of several clients as one, and back: copies, and views that are made when they are looked at."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from atoll.core.payloads import Nothing, Params, about, equal, nbytes, payload
from atoll.core.tree import lazy_rows, map_consecutive, stack, stack_fields, unstack


@payload
class Note:
    params: Params = about("weights")
    n: Tensor = about("a number")
    extra: Params = about("nothing")
    maybe: Tensor | None = about("perhaps something")
    word: str = about("a word")


@payload
class Table:
    n: Tensor = about("rows of each class")
    mu: Tensor = about("means", rows="n")


def note(i: int, **other: object) -> Note:
    made = Note({"w": torch.full((2, 3), float(i)), "steps": torch.tensor(i)}, torch.tensor(10.0 * i), {}, None, "warm")
    return replace(made, **other)  # type: ignore[arg-type]


def test_stack_and_unstack() -> None:
    notes = [note(1), note(2), note(3)]
    both = stack(notes)
    assert both.params["w"].shape == (3, 2, 3)
    assert both.n.tolist() == [10.0, 20.0, 30.0]
    for back in (unstack(both, 3), lazy_rows(both, 3)):
        assert all(equal(one, other) for one, other in zip(notes, back, strict=True))


def test_stack_of_identical_tensors_makes_no_copy() -> None:
    p = note(1)
    both = stack([p, note(2, params=p.params)])
    assert all(v.stride(0) == 0 for v in both.params.values())
    assert both.n.stride(0) != 0
    same = stack([p, p, p])
    assert all(v.stride(0) == 0 for v in (same.n, *same.params.values()))
    assert (len(same.n), same.word, same.maybe) == (3, "warm", None)
    assert all(equal(p, back) for back in unstack(same, 3))


@pytest.mark.parametrize("other", [note(1, word="cold"), note(1, params={}), note(1, maybe=torch.ones(1)), Nothing()])
def test_payloads_of_unlike_forms_cannot_be_stacked(other: object) -> None:
    with pytest.raises(ValueError, match="same class, names and scalars"):
        stack([note(1), other])


def test_rows_share_the_memory_of_the_stack_and_copies_do_not() -> None:
    both = stack([note(1), note(2)])
    there = both.n.untyped_storage().data_ptr()
    assert lazy_rows(both, 2)[1].n.untyped_storage().data_ptr() == there
    assert unstack(both, 2)[1].n.untyped_storage().data_ptr() != there


def test_lazy_row_is_created_on_first_read() -> None:
    row = lazy_rows(stack([note(1), note(2)]), 2)[1]
    assert "params" not in vars(row)
    first = row.params
    assert row.params is first
    assert first["w"].tolist() == [[2.0] * 3] * 2
    assert not hasattr(row, "nonsense")
    assert equal(replace(row, n=torch.tensor(5.0)), note(2, n=torch.tensor(5.0)))


def test_lazy_rows_have_the_size_of_copies() -> None:
    for several in ([note(1), note(2)], [Table(torch.tensor([1.0, 0.0]), torch.tensor([[1.0], [0.0]]))] * 2):
        both = stack(several)
        assert [nbytes(row) for row in lazy_rows(both, 2)] == [nbytes(one) for one in unstack(both, 2)]


def test_rows_next_to_each_other_are_gathered_without_a_copy() -> None:
    both = stack([note(i) for i in range(5)])
    several = lazy_rows(both, 5)
    for some, starts in ((several, 0), (several[1:4], 1)):
        found = stack_fields(some, "params")[0]["w"]
        assert found.data_ptr() == both.params["w"][starts].data_ptr()
        assert found[:, 0, 0].tolist() == [float(i) for i in range(starts, starts + len(some))]


def test_fields_of_other_payloads_are_stacked_one_by_one() -> None:
    several, others = lazy_rows(stack([note(i) for i in range(5)]), 5), lazy_rows(stack([note(7), note(8)]), 2)
    for some, numbers in (
        ([several[1], several[0]], [10.0, 0.0]),
        ([several[0], several[2]], [0.0, 20.0]),
        ([several[0], note(6)], [0.0, 60.0]),
        ([note(6), several[1]], [60.0, 10.0]),
        ([several[0], others[1]], [0.0, 80.0]),
        ([note(3), note(4)], [30.0, 40.0]),
        ([note(3)], [30.0]),
        ([replace(several[0], n=torch.tensor(1.0)), several[1]], [1.0, 10.0]),
    ):
        assert stack_fields(some, "n")[0].tolist() == numbers
    params, n = stack_fields([note(3), note(4)], "params", "n")
    assert (params["steps"].tolist(), n.tolist()) == ([3, 4], [30.0, 40.0])


def test_map_consecutive_calls_once_for_repeated_items() -> None:
    seen: list[str] = []
    a, b = "a" * 2, "b" * 2
    assert list(map_consecutive(lambda v: seen.append(v) or v[0], [a, a, b, b, a])) == ["a", "a", "b", "b", "a"]  # type: ignore[func-returns-value]
    assert seen == [a, b, a]
