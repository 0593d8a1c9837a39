"""Objects under the digests of their bytes: small ones in packs, large ones in files of their own."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from support.disk_crashes import disk_full, trouble_at
from torch import Tensor

from atoll.core.payloads import about, payload
from atoll.core.serialization import WireError, encode
from atoll.storage import object_packs
from atoll.storage.object_packs import HEAD
from atoll.storage.object_store import SMALL, ObjectStore


@payload
class Vector:
    v: Tensor = about("numbers")


def vector(value: float, length: int = 4) -> Vector:
    return Vector(torch.full((length,), value))


def save(store: ObjectStore, *values: float) -> list[str]:
    """Store an object for each value, as one checkpoint does."""
    names = [store.put(vector(value)) for value in values]
    store.mark_synced()
    return names


def packs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pack"))


def test_small_objects_of_a_checkpoint_share_a_pack_and_large_ones_have_files(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    large = vector(3.0, SMALL)

    small_names = save(store, 1.0, 2.0)
    name = store.put(large)
    save(store, 4.0)

    assert packs(tmp_path) == ["000001.pack", "000002.pack"]
    assert {path.name for path in tmp_path.iterdir()} == {"000001.pack", "000002.pack", name}
    for made in (store, ObjectStore(tmp_path)):
        assert [made.read(each) for each in small_names] == [encode(vector(1.0)), encode(vector(2.0))]
        assert made.read(name) == encode(large)


def test_a_pack_holds_digest_length_and_bytes_of_each_object(tmp_path: Path) -> None:
    one, other = encode(vector(1.0)), encode(vector(2.0))

    save(ObjectStore(tmp_path), 1.0, 2.0)

    wanted = b"".join(sha256(each).digest() + len(each).to_bytes(8, "little") + each for each in (one, other))
    assert (tmp_path / "000001.pack").read_bytes() == wanted


def test_an_object_that_is_stored_already_is_not_written_again_by_any_process(tmp_path: Path) -> None:
    save(ObjectStore(tmp_path), 1.0)
    before = (tmp_path / "000001.pack").read_bytes()

    save(ObjectStore(tmp_path), 1.0)

    assert packs(tmp_path) == ["000001.pack"]
    assert (tmp_path / "000001.pack").read_bytes() == before


def test_packs_without_used_objects_are_removed(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    save(store, 1.0, 2.0)
    (kept,) = save(store, 3.0)

    store.keep({kept})

    assert packs(tmp_path) == ["000002.pack"]
    assert store.read(kept) == encode(vector(3.0))


def test_used_objects_move_out_of_packs_that_are_mostly_unused(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    first, second = save(store, 1.0, 2.0, 3.0), save(store, 4.0, 5.0)

    store.keep({first[1], *second})

    assert packs(tmp_path) == ["000002.pack", "000003.pack"]
    size = HEAD.size + len(encode(vector(2.0)))
    assert (tmp_path / "000003.pack").stat().st_size == size
    for made in (store, ObjectStore(tmp_path)):
        assert made.read(first[1]) == encode(vector(2.0))
        with pytest.raises(FileNotFoundError):
            made.read(first[0])


def test_objects_that_move_are_flushed_before_their_old_pack_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = ObjectStore(tmp_path), list[tuple[str, bool]]()
    first = save(store, 1.0, 2.0, 3.0)
    flush = object_packs.sync_folder

    def note(path: Path) -> None:
        seen.append((path.name, (tmp_path / "000001.pack").exists()))
        flush(path)

    monkeypatch.setattr(object_packs, "sync_folder", note)
    store.keep({first[0]})

    assert seen == [("000002.pack", True), (tmp_path.name, True)]
    assert packs(tmp_path) == ["000002.pack"]


def test_without_room_on_the_disk_no_object_moves_and_none_is_lost(tmp_path: Path) -> None:
    for step in range(100):
        folder = tmp_path / str(step)
        store = ObjectStore(folder)
        names = save(store, 1.0, 2.0, 3.0)
        with trouble_at(step, disk_full, ("open", "fsync"), lasting=True) as done:
            store.keep({names[0]})
        for made in (store, ObjectStore(folder)):
            assert made.read(names[0]) == encode(vector(1.0))
        if len(done) < step:
            assert packs(folder) == ["000002.pack"]
            return
    pytest.fail("this takes too many steps")


def test_an_object_that_a_killed_process_left_incomplete_is_written_again(tmp_path: Path) -> None:
    save(ObjectStore(tmp_path), 1.0, 2.0)
    pack = tmp_path / "000001.pack"
    pack.write_bytes(pack.read_bytes()[:-3])
    store = ObjectStore(tmp_path)
    with pytest.raises(FileNotFoundError):
        store.read(sha256(encode(vector(2.0))).hexdigest())

    names = save(store, 1.0, 2.0)

    assert packs(tmp_path) == ["000001.pack", "000002.pack"]
    assert [ObjectStore(tmp_path).read(name) for name in names] == [encode(vector(1.0)), encode(vector(2.0))]


@pytest.mark.parametrize("at", [0, 31, 32, 40, 100, -1])
def test_a_flipped_bit_in_a_pack_is_noticed_and_mended_by_the_next_save(at: int, tmp_path: Path) -> None:
    (name,) = save(ObjectStore(tmp_path), 1.0)
    pack = tmp_path / "000001.pack"
    data = bytearray(pack.read_bytes())
    data[at] ^= 1
    pack.write_bytes(data)

    with pytest.raises((WireError, FileNotFoundError)):
        ObjectStore(tmp_path).read(name)
    store = ObjectStore(tmp_path)
    assert save(store, 1.0) == [name]

    assert ObjectStore(tmp_path).read(name) == store.read(name) == encode(vector(1.0))


def test_a_reader_finds_objects_that_another_process_added_or_moved(tmp_path: Path) -> None:
    writer, reader = ObjectStore(tmp_path), ObjectStore(tmp_path)
    first = save(writer, 1.0, 2.0, 3.0)
    assert reader.read(first[0]) == encode(vector(1.0))

    (later,) = save(writer, 4.0)
    assert reader.read(later) == encode(vector(4.0))

    writer.keep({first[0], later})
    assert packs(tmp_path) == ["000002.pack", "000003.pack"]
    assert reader.read(first[0]) == encode(vector(1.0))


def test_packs_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    save(ObjectStore(tmp_path), 1.0)
    (tmp_path / "000001.pack").rename(tmp_path / "999999.pack")

    save(ObjectStore(tmp_path), 2.0)

    assert packs(tmp_path) == ["1000000.pack", "999999.pack"]
