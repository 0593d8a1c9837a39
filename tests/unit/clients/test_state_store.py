"""Client states between rounds."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from atoll.clients import state_store as module
from atoll.clients.state_store import DiskStore, MemoryStore, Store
from atoll.core.payloads import Params, about, equal, payload
from atoll.core.serialization import Limits

ODD = [
    "a/b",
    "..",
    ".",
    "é",
    "x.y",
    "x",
    "",
    "a b",
    "%2F",
    "con",
    "-",
    "ab.safetensors",
    "A",
    "客" * 20,
    "客" * 300,
    "n" * 300,
    "a\0b\n",
]


@payload
class State:
    params: Params = about("weights")
    seen: Tensor | None = about("perhaps")
    stage: str = about("scalar")


def state(value: float, seen: bool = True) -> State:
    w = torch.full((2, 3), value)
    return State({"body.w": w, "buffers.n": torch.tensor(3)}, torch.tensor([True, False]) if seen else None, "warm")


@pytest.fixture(params=["memory", "disk", "disk with room for one"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    return DiskStore(tmp_path / "states", State, cache=1 if "one" in request.param else 32)


def test_store_returns_states_bit_for_bit(store: Store) -> None:
    kept = {i: state(0.1 * at, seen=at % 2 == 0) for at, i in enumerate(ODD)}
    for i, s in kept.items():
        store.put(i, s)
    for i, s in kept.items():
        found = store.get(i)
        assert found is not None
        assert equal(found, s)


def test_store_iterates_over_sorted_original_names(store: Store) -> None:
    for i in ODD:
        store.put(i, state(1.0))
    assert list(store) == sorted(ODD)


def test_store_has_no_state_of_client_without_participation(store: Store) -> None:
    store.put("a", state(1.0))
    assert store.get("b") is None
    assert list(store) == ["a"]


def test_store_returns_latest_state(store: Store) -> None:
    for value in (1.0, 2.0):
        store.put("a", state(value))
        store.put("b", state(value + 10))
    assert equal(store.get("a"), state(2.0))
    assert equal(store.get("b"), state(12.0))


def test_disk_store_writes_only_into_its_folder(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "states", State)
    for i in ODD:
        store.put(i, state(1.0))
    assert [p.name for p in tmp_path.iterdir()] == ["states"]
    assert all(p.is_file() for p in (tmp_path / "states").iterdir())
    assert len(list((tmp_path / "states").iterdir())) == len(ODD)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many states were read from disk so far."""
    count = [0]
    decode = module.decode

    def counted(kind: type[State], data: bytes, limits: Limits) -> State:
        count[0] += 1
        return decode(kind, data, limits)

    monkeypatch.setattr(module, "decode", counted)
    return count


def test_disk_store_caches_most_recently_used_states_only(tmp_path: Path, reads: list[int]) -> None:
    store = DiskStore(tmp_path, State, cache=2)
    for i in "abc":
        store.put(i, state(ord(i)))
    store.get("c"), store.get("b")
    assert reads == [0]  # a made room
    store.get("a")
    assert reads == [1]  # instead of c, which was used before b
    store.get("b")
    assert reads == [1]
    store.get("c")
    assert reads == [2]


def test_cleared_store_is_empty(store: Store) -> None:
    for i in ODD:
        store.put(i, state(1.0))
    store.clear()
    assert store.get("a/b") is None
    assert list(store) == []
    store.put("a", state(2.0))
    assert list(store) == ["a"]


# -- rounds that break off --------------------------------------------------------------------------------------------


def test_rollback_discards_states_since_last_commit(store: Store) -> None:
    store.put("a", state(1.0))
    store.put("b/c", state(1.0))
    store.commit()
    for i in ("a", "b/c", "new"):
        store.put(i, state(2.0))
        store.put(i, state(3.0))
    assert list(store) == ["a", "b/c", "new"]
    assert equal(store.get("a"), state(3.0))  # it counts at once
    store.rollback()
    assert list(store) == ["a", "b/c"]
    assert equal(store.get("a"), state(1.0))
    assert equal(store.get("b/c"), state(1.0))
    assert store.get("new") is None


def test_rollback_keeps_committed_states(store: Store) -> None:
    store.put("a", state(1.0))
    store.commit()
    store.rollback()
    assert equal(store.get("a"), state(1.0))
    store.put("a", state(2.0))
    store.commit()
    store.rollback()
    assert equal(store.get("a"), state(2.0))


def test_rollback_leaves_no_files(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, State)
    store.put("a", state(1.0))
    store.rollback()
    assert list(tmp_path.iterdir()) == []
