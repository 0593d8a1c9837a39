"""Checkpoints: whole, or not there."""

import os
import random
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from support.disk_crashes import crash_points, disk_full, trouble_at
from torch import Tensor

from atoll.core.contract import Contract, Messages
from atoll.core.payloads import Nothing, Params, about, equal, payload
from atoll.errors import AtollError
from atoll.storage import object_store
from atoll.storage.checkpoint import Checkpoints, Snapshot
from atoll.utils import files


@payload
class Server:
    params: Params = about("weights")


@payload
class State:
    v: Tensor = about("a vector")


TYPES = Contract((Messages(Nothing, Nothing),), State, Server)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, TYPES)


def state(value: float) -> State:
    return State(torch.full((5,), value))


def snapshot(checkpoints: Checkpoints, at: int, **clients: float) -> Snapshot:
    """Of round ``at``; clients hold a constant vector each."""
    states = {i: checkpoints.put_state(state(value)) for i, value in clients.items()}
    server = Server({"w": torch.full((3, 2), float(at)), "n": torch.tensor(at)})
    scores = {"after": {"accuracy": np.array([0.1 * at])}}
    return Snapshot(at, server, states, {"totals": {"up": 0.1 * at}}, b"rows of round %d" % at, scores=scores)


def load(checkpoints: Checkpoints) -> Snapshot:
    found = checkpoints.load(pytest.fail)
    assert found is not None
    return found


def assert_holds(checkpoints: Checkpoints, at: int, warnings: list[str] | None = None) -> None:
    """The latest good checkpoint is the whole of round ``at``."""
    found = checkpoints.load(pytest.fail if warnings is None else warnings.append)
    assert found is not None
    assert found.round == at
    assert found.rows == b"rows of round %d" % at
    assert found.progress == {"totals": {"up": 0.1 * at}}
    assert equal(found.server, Server({"w": torch.full((3, 2), float(at)), "n": torch.tensor(at)}))
    for name in found.states.values():
        checkpoints.get_state(name)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each object a file of its own; packs are tested in test_object_store.py."""
    monkeypatch.setattr(object_store, "SMALL", 0)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_saved_checkpoint_is_loaded_unchanged(checkpoints: Checkpoints) -> None:
    checkpoints.save(snapshot(checkpoints, 7, a=1.5, b=-2.0))
    assert_holds(checkpoints, 7)
    found = load(checkpoints)
    assert equal(checkpoints.get_state(found.states["a"]), state(1.5))
    assert equal(checkpoints.get_state(found.states["b"]), state(-2.0))


def test_load_without_checkpoints_returns_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.load(pytest.fail) is None


def test_two_checkpoints_are_kept_with_their_states_and_no_others(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for at in range(1, 5):
        checkpoints.save(snapshot(checkpoints, at, a=float(at)))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["round-000003", "round-000004"]
    assert len(list((tmp_path / "objects").iterdir())) == 2


def test_latest_checkpoint_is_found_beyond_a_million_rounds(checkpoints: Checkpoints) -> None:
    for at in (9, 10, 999_999, 1_000_000):
        checkpoints.save(snapshot(checkpoints, at))
        assert_holds(checkpoints, at)


def test_unchanged_state_is_written_once(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(snapshot(checkpoints, 1, a=1.0, b=1.0, c=3.0))
    assert len(list((tmp_path / "objects").iterdir())) == 2  # a and b share theirs
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "objects").iterdir()}
    checkpoints.save(snapshot(checkpoints, 2, a=1.0, b=5.0, c=3.0))
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "objects").iterdir()}
    assert len(after) == 3
    assert before.items() <= after.items()


def test_saving_a_round_again_replaces_it(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(snapshot(checkpoints, 1, a=1.0))
    checkpoints.save(snapshot(checkpoints, 1, a=2.0))
    assert equal(checkpoints.get_state(load(checkpoints).states["a"]), state(2.0))
    assert len(list((tmp_path / "objects").iterdir())) == 1


# -- damage -----------------------------------------------------------------------------------------------------------

FILES = [
    "server.safetensors", "progress.json", "states.json", "per_client.json", "servers.json", "clients.parquet",
    "scores.safetensors", "manifest.json", "object",
]  # fmt: skip


def file_of(tmp_path: Path, at: int, name: str, checkpoints: Checkpoints) -> Path:
    if name == "object":
        return tmp_path / "objects" / checkpoints.put_state(state(float(at)))
    return tmp_path / "checkpoints" / f"round-{at:06d}" / name


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at // 8 % len(data)] ^= 1 << at % 8
    path.write_bytes(bytes(data))


def two(checkpoints: Checkpoints) -> None:
    for at in (5, 10):
        checkpoints.save(snapshot(checkpoints, at, a=float(at), b=0.5))


@pytest.mark.parametrize("name", FILES)
def test_checkpoint_with_a_flipped_bit_is_skipped_for_the_one_before(
    name: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    two(checkpoints)
    path = file_of(tmp_path, 10, name, checkpoints)
    good, kept = path.read_bytes(), content(tmp_path)
    for at in range(0, 8 * len(good), 61):
        flip(path, at)
        warnings: list[str] = []
        assert_holds(checkpoints, 5, warnings)
        assert len(warnings) == 1
        assert "round-000010" in warnings[0]
        path.write_bytes(good)
    assert content(tmp_path) == kept  # loading leaves everything as it is


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["empty", "half", "missing", "noise"])
def test_missing_or_truncated_files_are_detected(
    name: str, harm: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    two(checkpoints)
    path = file_of(tmp_path, 10, name, checkpoints)
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": b"[1, 2]"}[harm])
    warnings: list[str] = []
    assert_holds(checkpoints, 5, warnings)
    assert len(warnings) == 1


@pytest.mark.parametrize("flips", [300, pytest.param(3000, marks=pytest.mark.chaos)])
def test_random_bit_flips_are_never_loaded_silently(flips: int, checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Anywhere in any file, as often as the file is long."""
    two(checkpoints)
    paths = [file_of(tmp_path, 10, name, checkpoints) for name in FILES]
    sizes = [path.stat().st_size for path in paths]
    draw = random.Random(flips)
    for _ in range(flips):
        (path,) = draw.choices(paths, sizes)
        good = path.read_bytes()
        flip(path, draw.randrange(8 * len(good)))
        warnings: list[str] = []
        assert_holds(checkpoints, 5, warnings)
        assert len(warnings) == 1
        path.write_bytes(good)
    assert_holds(checkpoints, 10)


@pytest.mark.parametrize("name", FILES)
def test_file_truncated_anywhere_is_not_loaded(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    path = file_of(tmp_path, 10, name, checkpoints)
    good = path.read_bytes()
    for percent in range(100):
        path.write_bytes(good[: len(good) * percent // 100])
        assert_holds(checkpoints, 5, [])


@pytest.mark.parametrize("name", ["server.safetensors", "progress.json", "clients.parquet", "object"])
def test_the_warning_names_the_file_and_both_digests(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    path, warnings = file_of(tmp_path, 10, name, checkpoints), list[str]()
    was = sha256(path.read_bytes()).hexdigest()
    flip(path, 99)
    now = sha256(path.read_bytes()).hexdigest()
    assert_holds(checkpoints, 5, warnings)
    file = f"objects/{path.name}" if name == "object" else name
    assert warnings == [
        f"Checkpoint round-000010 is damaged ({file} has SHA-256 {now[:12]}... where {was[:12]}... was written); "
        "trying the one before it."
    ]


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("object", "per_client.json", "servers.json")])
def test_files_of_two_rounds_cannot_be_mixed(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    older = file_of(tmp_path, 5, name, checkpoints).read_bytes()
    file_of(tmp_path, 10, name, checkpoints).write_bytes(older)
    assert_holds(checkpoints, 5, [])


def test_a_checkpoint_under_the_name_of_another_round_is_not_loaded(checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    (tmp_path / "checkpoints" / "round-000010").rename(tmp_path / "checkpoints" / "round-000011")
    warnings: list[str] = []
    assert_holds(checkpoints, 5, warnings)
    assert "manifest.json is that of round 10" in warnings[0]


def test_a_checkpoint_of_another_configuration_is_not_loaded(tmp_path: Path) -> None:
    mine, others = (Checkpoints(tmp_path, TYPES, {"lr": lr, "seed": 0}) for lr in (0.1, 0.2))
    mine.save(snapshot(mine, 5, a=1.0))
    assert_holds(Checkpoints(tmp_path, TYPES, {"seed": 0, "lr": 0.1}), 5)  # in whatever order
    before = content(tmp_path)
    with pytest.raises(AtollError, match="belongs to another configuration"):
        others.load(lambda _: None)
    assert content(tmp_path) == before


def test_when_every_checkpoint_is_damaged_nothing_is_deleted(checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    for at in (5, 10):
        flip(file_of(tmp_path, at, "server.safetensors", checkpoints), 900)
    before, warnings = content(tmp_path), list[str]()
    with pytest.raises(AtollError, match="--force") as error:
        checkpoints.load(warnings.append)
    assert len(warnings) == 2
    for at in (5, 10):
        assert f"Checkpoint round-{at:06d} is damaged (server.safetensors has SHA-256" in str(error.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", FILES)
def test_run_that_resumed_from_an_older_checkpoint_replaces_the_damaged_one(
    name: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """From round 5 it comes to round 10 again: the damaged file is replaced, and the one after is the last resort."""
    two(checkpoints)
    flip(file_of(tmp_path, 10, name, checkpoints), 100)
    assert_holds(checkpoints, 5, [])
    for at in (6, 7):
        checkpoints.save(snapshot(checkpoints, at, a=float(at), b=0.5))
        assert_holds(checkpoints, at)
    folders = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert folders == ["round-000006", "round-000007"]  # The damaged one is deleted.
    checkpoints.save(snapshot(checkpoints, 10, a=10.0, b=0.5))
    assert_holds(checkpoints, 10)


def test_a_damaged_state_is_written_anew_by_a_new_process(tmp_path: Path) -> None:
    """The same state has the same name, so the file is already there: but it is not what its name says."""
    name = Checkpoints(tmp_path, TYPES).put_state(state(1.0))
    (tmp_path / "objects" / name).write_bytes(b"rubbish")
    checkpoints = Checkpoints(tmp_path, TYPES)
    assert checkpoints.put_state(state(1.0)) == name
    assert equal(checkpoints.get_state(name), state(1.0))
    assert sha256((tmp_path / "objects" / name).read_bytes()).hexdigest() == name


def test_a_damaged_older_checkpoint_does_not_stop_a_run(checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    file_of(tmp_path, 5, "states.json", checkpoints).write_bytes(b"{")
    file_of(tmp_path, 10, "states.json", checkpoints).write_bytes(b"{")
    checkpoints.save(snapshot(checkpoints, 15, a=15.0))
    assert_holds(checkpoints, 15)


@pytest.mark.parametrize("has_syncfs", [True, False])
def test_everything_that_a_checkpoint_names_is_on_disk_before_it_counts(
    has_syncfs: bool, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call flushes all files before the rename; on systems without it, each file is flushed."""
    flushed: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_file(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}").removeprefix(f"{tmp_path}/"))
        fsync(handle)

    def note_all(handle: int) -> int:
        flushed.append("all")
        return 0

    def note_rename(source: Path, target: Path) -> None:
        flushed.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_file)
    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(files, "_SYNCFS", note_all if has_syncfs else None)
    checkpoints.save(snapshot(checkpoints, 7, a=1.5, b=-2.0))

    before = flushed[: flushed.index("rename")]
    made = {f"checkpoints/new-000007/{path.name}" for path in (tmp_path / "checkpoints" / "round-000007").iterdir()}
    made |= {f"objects/{path.name}" for path in (tmp_path / "objects").iterdir()}
    assert len(made) == 11  # nine files and two states
    assert "all" in before if has_syncfs else made | {"objects", "checkpoints/new-000007"} <= set(before)
    assert flushed[-1] == "checkpoints"  # the renamed entry


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [0, 2**16], ids=["files", "packs"])
def test_a_crash_at_any_step_of_saving_leaves_a_whole_checkpoint(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "SMALL", small)
    place = {"at": tmp_path}

    def prepare() -> None:
        place["at"] = tmp_path / str(len(list(tmp_path.iterdir())))
        two(Checkpoints(place["at"], TYPES))

    def act() -> None:
        checkpoints = Checkpoints(place["at"], TYPES)
        checkpoints.save(snapshot(checkpoints, 15, a=15.0, b=0.5))

    rounds = set()
    for step in crash_points(act, prepare):
        found = load(Checkpoints(place["at"], TYPES))
        rounds.add(found.round)
        assert_holds(Checkpoints(place["at"], TYPES), found.round)
        act()  # and the run goes on
        assert_holds(Checkpoints(place["at"], TYPES), 15)
        names = sorted(p.name for p in (place["at"] / "checkpoints").iterdir())
        assert names == ["round-000010", "round-000015"], f"litter after a crash at step {step}"
    assert rounds == {10, 15}


def test_tidy_removes_files_of_an_interrupted_save(checkpoints: Checkpoints, tmp_path: Path) -> None:
    two(checkpoints)
    for folder in ("new-000015", "round-000003"):
        shutil.copytree(tmp_path / "checkpoints" / "round-000005", tmp_path / "checkpoints" / folder)
    checkpoints.put_state(state(99.0))
    checkpoints.tidy(10)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["round-000005", "round-000010"]
    assert len(list((tmp_path / "objects").iterdir())) == 3
    assert_holds(checkpoints, 10)


def test_a_half_written_checkpoint_is_ignored(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(snapshot(checkpoints, 5))
    half = tmp_path / "checkpoints" / "new-000010"
    half.mkdir()
    (half / "server.safetensors").write_bytes(b"half of")
    assert_holds(checkpoints, 5)


@pytest.mark.parametrize("small", [0, 2**16], ids=["files", "packs"])
def test_full_disk_at_any_step_keeps_the_last_checkpoint(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written from some step on, and what was there can still be removed."""
    monkeypatch.setattr(object_store, "SMALL", small)
    for step in range(200):
        checkpoints = Checkpoints(tmp_path / str(step), TYPES)
        two(checkpoints)
        kept = content(tmp_path / str(step) / "checkpoints")
        with trouble_at(step, disk_full, ("mkdir", "fsync"), lasting=True):
            try:
                checkpoints.save(snapshot(checkpoints, 15, a=15.0, b=0.5))
            except OSError:
                pass
            else:
                break
        if (found := load(checkpoints)).round == 10:
            assert content(tmp_path / str(step) / "checkpoints") == kept  # and nothing beside it
        assert_holds(checkpoints, found.round)
    assert 15 < step < 199
    assert_holds(checkpoints, 15)


def test_objects_that_no_kept_checkpoint_needs_are_deleted_also_by_a_new_process(tmp_path: Path) -> None:
    """Each of four checkpoints needs an object of its own, and two checkpoints are kept."""

    def save(made: Checkpoints, done: int) -> str:
        taken = snapshot(made, done, a=float(done))
        made.save(taken)
        return taken.states["a"]

    first = Checkpoints(tmp_path, TYPES)
    names = [save(first, done) for done in (1, 2, 3)]
    assert {path.name for path in (tmp_path / "objects").iterdir()} == set(names[1:])

    names.append(save(Checkpoints(tmp_path, TYPES), 4))
    assert {path.name for path in (tmp_path / "objects").iterdir()} == set(names[2:])
