"""Payloads: what may be in them, what is left out of their packed form, and how much that weighs."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.payloads import Flagged, Mixed, Table, mixed, table
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from atoll.core.payloads import Nothing, Params, about, equal, nbytes, pack, payload, unpack
from atoll.core.prng import key, normal, uniform
from atoll.core.tree import stack


def there_and_back(p: object) -> object:
    packed = pack(p)
    return unpack(type(p), packed.tensors, packed.scalars)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_class_tables_survive_packing(counts: list[int], width: int, covariances: bool) -> None:
    p = table(torch.tensor(counts).float(), width, covariances)
    back = there_and_back(p)
    assert equal(back, p)
    assert isinstance(back, Table)
    assert torch.equal(back.n, p.n)
    assert torch.equal(back.mu, p.mu)
    assert (back.sigma is None) == (p.sigma is None)
    if back.sigma is not None and p.sigma is not None:
        assert torch.equal(back.sigma, p.sigma)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_flags_survive_packing(flags: list[bool]) -> None:
    held = torch.tensor(flags)
    p = Flagged(normal(key(0), len(flags), 3) * held[:, None], held)
    back = there_and_back(p)
    assert isinstance(back, Flagged)
    assert back.held.dtype == torch.bool
    assert torch.equal(back.held, held)
    assert torch.equal(back.means, p.means)


@pytest.mark.parametrize("maybe", [None, torch.arange(3)])
def test_other_fields_survive_packing(maybe: Tensor | None) -> None:
    p = mixed(maybe)
    back = there_and_back(p)
    assert equal(back, p)
    assert isinstance(back, Mixed)
    assert back.params.keys() == p.params.keys()
    assert (back.stage, back.step, back.rate, back.last) == ("warm", 3, 0.5, True)
    assert torch.equal(back.square, p.square)


def test_absent_classes_do_not_travel() -> None:
    """Three classes, the second absent, width 2. Labels 2 * 4 bytes, counts 2 * 4, means 2 * 2 * 4 = 16, triangles
    2 * 3 * 4 = 24: 56 bytes. Dense it would be 3 * (1 + 2 + 4) * 4 = 84.
    """
    packed = pack(table(torch.tensor([4.0, 0.0, 1.0]), 2))
    assert packed.tensors["n#held"].tolist() == [0, 2]
    assert packed.tensors["n"].tolist() == [4, 1]
    assert packed.tensors["mu"].shape == (2, 2)
    assert packed.tensors["sigma"].shape == (2, 3)
    assert packed.nbytes == 56


def test_labels_do_not_travel_if_all_are_held() -> None:
    """Counts 3 * 4, means 3 * 2 * 4 = 24, triangles 3 * 3 * 4 = 36: 72 bytes. Flags that are all up cost nothing."""
    assert nbytes(table(torch.tensor([4.0, 2.0, 1.0]), 2)) == 72
    assert nbytes(Flagged(torch.ones(3, 2), torch.ones(3, dtype=torch.bool))) == 24
    assert nbytes(Flagged(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))) == 0


def test_size_of_weights_scalars_and_strings() -> None:
    """Weights 6 * 4 + 4 * 4, an int64 counter 8, triangle 3 * 4, "warm" 4, and 8 for each of three numbers: 88."""
    assert nbytes(mixed()) == 24 + 16 + 8 + 12 + 4 + 3 * 8
    assert nbytes(mixed(torch.zeros(5))) == 88 + 20
    assert nbytes(Nothing()) == 0


@pytest.mark.parametrize("kind", [list, dict, nn.Module, object, Tensor | int, list[Tensor], tuple, "Table"])
def test_payload_refuses_fields_of_other_types(kind: object) -> None:
    with pytest.raises(TypeError, match=r"Leak\.data.* may not be sent"):
        payload(type("Leak", (), {"__annotations__": {"data": kind}, "__module__": __name__}))


def test_fields_have_no_default_values() -> None:
    """A payload that is still in a stack would have the default in place of what is there."""
    with pytest.raises(TypeError, match=r"Half\.rate has a default value"):

        @payload
        class Half:
            rate: float = 0.5


def test_rows_must_name_a_tensor_of_the_same_payload() -> None:
    for marker in ("count", "stage", "perhaps"):
        with pytest.raises(TypeError, match=f"rows='{marker}' must name a Tensor field"):

            @payload
            class Wrong:
                mu: Tensor = about("means", rows=marker)
                stage: str = about("no table can hang on this")
                perhaps: Tensor | None = about("nor on this")


def test_payload_fields_cannot_be_assigned() -> None:
    with pytest.raises(FrozenInstanceError):
        mixed().stage = "cold"  # type: ignore[misc]


def test_unpack_refuses_missing_and_surplus_entries() -> None:
    tensors, scalars = pack(table(torch.tensor([1.0, 0.0]), 2))
    with pytest.raises(ValueError, match=r"Table\.mu is missing"):
        unpack(Table, {name: v for name, v in tensors.items() if name != "mu"}, scalars)
    with pytest.raises(ValueError, match="no field for secret"):
        unpack(Table, tensors | {"secret": torch.zeros(1)}, scalars)
    with pytest.raises(ValueError, match="no field for secret"):
        unpack(Table, tensors, scalars | {"secret": 1})
    with pytest.raises(ValueError, match="n#classes"):
        unpack(Table, tensors, {})


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_tables_must_have_a_row_for_each_class_held(rows: int) -> None:
    """One row must not be spread over two classes, nor the third of three be dropped."""
    tensors, scalars = pack(table(torch.tensor([1.0, 2.0]), 2))
    for name in ("mu", "sigma", "n"):
        wrong = torch.ones(rows, *tensors[name].shape[1:])
        with pytest.raises((ValueError, RuntimeError)):
            unpack(Table, tensors | {name: wrong}, scalars)


def test_unpack_refuses_scalars_of_another_type() -> None:
    tensors, scalars = pack(mixed())
    for name, wrong in (("stage", 1), ("step", "1"), ("last", 2), ("rate", "fast")):
        with pytest.raises(ValueError, match=f"Mixed.{name} "):
            unpack(Mixed, tensors, scalars | {name: wrong})


def test_vmap_maps_over_tensors_and_leaves_scalars_alone() -> None:
    both = stack([mixed(), mixed()])

    def double(p: Mixed) -> Mixed:
        assert p.stage == "warm"
        assert p.square.shape == (2, 2)
        return Mixed({name: 2 * v for name, v in p.params.items()}, p.square, None, p.stage, p.step, p.rate, p.last)

    out = vmap(double)(both)
    assert out.params["b.weight"].tolist() == (2 * torch.ones(2, 2, 3)).tolist()
    assert out.maybe is None


def test_payload_is_a_pytree() -> None:
    leaves = pytree.tree_leaves(mixed(torch.zeros(1)))
    assert len(leaves) == 5
    assert all(isinstance(leaf, Tensor) for leaf in leaves)


def test_equality_is_bit_for_bit() -> None:
    a, b = mixed(), mixed()
    assert equal(a, b)
    assert not equal(a, mixed(torch.zeros(1)))
    assert not equal(a, Nothing())
    b.params["a.bias"][0] = 1e-30
    assert not equal(a, b)


def test_packing_copies_or_views_but_never_changes() -> None:
    p = table((uniform(key(0), 5) * 3).floor(), 4)
    before = (p.n.clone(), p.mu.clone())
    there_and_back(p)
    assert torch.equal(p.n, before[0])
    assert torch.equal(p.mu, before[1])


@payload
class InPart:
    n: Tensor = about("rows of each class", count=True)
    seen: Tensor = about("a flag of each class")
    mu: Tensor = about("a row of each class", rows="n")
    sigma: Tensor | None = about("a matrix of each class", rows="seen", symmetric=True)
    whole: Tensor = about("a symmetric matrix", symmetric=True)
    params: Params = about("weights")
    title: str = about("a text")


@pytest.mark.parametrize("n", [[0, 2, 3], [1, 1, 1], [0, 0, 0]])
@pytest.mark.parametrize("flags", [[True, False, True], [True, True, True]])
@pytest.mark.parametrize("sent", [True, False])
def test_size_is_counted_from_shapes_as_it_is_packed(n: list[int], flags: list[bool], sent: bool) -> None:
    counts, seen = torch.tensor(n, dtype=torch.float), torch.tensor(flags)
    held = (counts > 0).float()[:, None]
    p = InPart(counts, seen, torch.ones(3, 5) * held, torch.zeros(3, 4, 4) if sent else None, torch.eye(3),
               {"w": torch.ones(2, 2)}, "é")  # fmt: skip

    assert nbytes(p) == pack(p).nbytes


@pytest.mark.parametrize(
    ("tensors", "scalars", "message"),
    [
        ({}, {"n#classes": -1}, "no number from 0"),
        ({}, {"n#classes": 2**40}, "no number from 0"),
        ({}, {"n#classes": True}, "no number from 0"),
        ({}, {"n#classes": 3.0}, "no number from 0"),
        ({"n#held": torch.tensor([2, 0], dtype=torch.int32)}, {}, "ascending order"),
        ({"n#held": torch.tensor([0, 0], dtype=torch.int32)}, {}, "ascending order"),
        ({"n": torch.tensor([4.0, 0.0])}, {}, "cannot be 0"),
        ({"n": torch.tensor([True, True])}, {}, "cannot be 0"),
        ({"sigma": torch.zeros(2, 4)}, {}, "do not fill the upper triangle"),
        ({"sigma": torch.zeros(2, 45 * 23)}, {}, "takes more than 1000 bytes"),
    ],
)
def test_unpack_refuses_impossible_tables(tensors: dict[str, Tensor], scalars: dict[str, Any], message: str) -> None:
    packed = pack(table(torch.tensor([4.0, 0.0, 1.0]), 2))

    with pytest.raises(ValueError, match=message):
        unpack(Table, packed.tensors | tensors, packed.scalars | scalars, most=1000)


def test_table_of_many_absent_classes_is_refused_before_memory_is_taken() -> None:
    """One row, and the claim that it belongs to the first of many classes."""
    packed = pack(table(torch.tensor([4.0, 0.0, 0.0]), 2))

    with pytest.raises(ValueError, match="takes more than 1000 bytes"):
        unpack(Table, packed.tensors, packed.scalars | {"n#classes": 60_000}, most=1000)
