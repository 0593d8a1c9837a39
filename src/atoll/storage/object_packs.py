"""Keep many small objects in few files: creating a file takes longer than writing a small model.

A pack is a file of objects one after the other, each behind its SHA-256 and its length. It is written once: objects are
appended until the next checkpoint is on the disk, and later objects go to a new pack.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ..utils.files import make_folder, sync_folder

HEAD = Struct("<32sQ")  # SHA-256 and length of the object that follows
SUFFIX = ".pack"
FULL = 0.5  # share of a pack that is in use; below it, its objects move to the current pack


class _Place(NamedTuple):
    """The bytes of an object."""

    pack: Path
    start: int
    size: int


class Packs:
    """The packs of one folder.

    Args:
        folder: folder of the packs; it is made with the first one.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._places: dict[str, _Place] = {}
        self._is_listed = False  # whether the packs of other processes are among the places
        self._current: Path | None = None  # the pack that takes new objects
        self._end = 0  # its size

    def __contains__(self, name: str) -> bool:
        self._list()
        return name in self._places

    def add(self, name: str, data: bytes) -> Path:
        """Append an object to the current pack, and return the pack; ``name`` is the SHA-256 of the data."""
        self._list()
        if self._current is None:
            self._begin()
        assert self._current is not None
        handle = os.open(self._current, os.O_WRONLY | os.O_NOFOLLOW | os.O_APPEND)
        try:
            # A full disk takes a part before it raises; what remains of an earlier failure is written over.
            os.ftruncate(handle, self._end)
            rest = memoryview(HEAD.pack(bytes.fromhex(name), len(data)) + data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
        self._places[name] = _Place(self._current, self._end + HEAD.size, len(data))
        self._end += HEAD.size + len(data)
        return self._current

    def _begin(self) -> None:
        """Create a pack for new objects."""
        make_folder(self._folder)
        number = max((int(pack.stem) for pack in self._all()), default=0) + 1
        pack = self._folder / f"{number:06d}{SUFFIX}"
        os.close(os.open(pack, os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o666))
        self._current, self._end = pack, 0

    def read(self, name: str) -> bytes:
        """Return the bytes of an object as they are on the disk.

        Raises:
            FileNotFoundError: if no pack has the object.
        """
        self._list()
        try:
            return _read(self._places[name])
        except (KeyError, FileNotFoundError):  # Another process may have added it, or moved it to another pack.
            self._list(again=True)
        if name not in self._places:
            raise FileNotFoundError(f"no file of {str(self._folder)!r} has the object {name[:12]}...")
        return _read(self._places[name])

    def close(self) -> None:
        """Put later objects into a new pack."""
        self._current = None

    def keep(self, used: set[str]) -> None:
        """Remove packs without used objects, and move the used ones out of packs that are mostly unused."""
        self._list()
        self._places = {name: place for name, place in self._places.items() if name in used}
        held = defaultdict[Path, list[str]](list)
        for name, place in self._places.items():
            held[place.pack].append(name)
        packs = [pack for pack in self._all() if pack != self._current]
        sparse = [pack for pack in packs if self._share(pack, held[pack]) < FULL]
        if not self._move([name for pack in sparse for name in held[pack]]):
            sparse = [pack for pack in sparse if not held[pack]]
        for pack in sparse:
            pack.unlink(missing_ok=True)

    def _share(self, pack: Path, names: list[str]) -> float:
        """Return the share of a pack that some of its objects take."""
        return sum(HEAD.size + self._places[name].size for name in names) / max(1, pack.stat().st_size)

    def _move(self, names: list[str]) -> bool:
        """Move objects to the current pack and flush it. Return False if the disk has no room; then nothing moves."""
        before = dict(self._places)
        try:
            packs = {self.add(name, _read(self._places[name])) for name in names}
            for pack in packs:
                sync_folder(pack)
                sync_folder(self._folder)
        except OSError:
            self._places = before
            return False
        return True

    def _all(self) -> list[Path]:
        """Return all packs in the order in which they were made."""
        found = [pack for pack in self._folder.glob(f"*{SUFFIX}") if pack.stem.isdecimal()]
        return sorted(found, key=lambda pack: int(pack.stem))

    def _list(self, again: bool = False) -> None:
        """Find the objects of all packs in the folder, unless that was done before."""
        if self._is_listed and not again:
            return
        for pack in self._all():  # of two copies of an object the later one counts
            self._places |= dict(_objects(pack))
        self._is_listed = True


def _objects(pack: Path) -> Iterator[tuple[str, _Place]]:
    """Yield the objects of a pack; the last one may be incomplete if its process was killed, and is left out."""
    with pack.open("rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while len(head := file.read(HEAD.size)) == HEAD.size:
            digest, length = HEAD.unpack(head)
            at += HEAD.size
            if at + length > size:
                return
            yield digest.hex(), _Place(pack, at, length)
            at = file.seek(at + length)


def _read(place: _Place) -> bytes:
    with place.pack.open("rb") as file:
        file.seek(place.start)
        return file.read(place.size)
