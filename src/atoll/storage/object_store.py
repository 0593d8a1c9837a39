"""Keep payloads of a run under the SHA-256 of their bytes, so that each is stored once.

A large object is a file that is named by its digest; small ones share packs.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from ..core.payloads import Payload
from ..core.serialization import WireError, encode
from ..utils.files import make_folder, write
from .object_packs import SUFFIX, Packs

SMALL = 2**16  # bytes up to which an object goes into a pack


class ObjectStore:
    """The objects of one run, which its checkpoints share.

    Args:
        folder: folder of the files; it is made with the first object.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._packs = Packs(folder)
        self._stored: set[str] | None = None  # names of all objects with files of their own, once they were listed
        self._written: set[str] = set()  # names of objects that this process wrote or compared
        self._unsynced: set[Path] = set()  # files that may not be on the disk yet

    def put(self, payload: Payload) -> str:
        """Store a payload once, under the digest of its bytes, and return that name."""
        data = encode(payload)
        name = sha256(data).hexdigest()
        if name in self._written:
            return name
        if len(data) <= SMALL:
            if name not in self._packs or self._packs.read(name) != data:
                self._unsynced.add(self._packs.add(name, data))
        else:
            self._write(name, data)
        self._written.add(name)
        return name

    def _write(self, name: str, data: bytes) -> None:
        """Write a file of its own for an object, unless the file is there."""
        path = self._folder / name
        if not path.exists() or path.read_bytes() != data:
            make_folder(self._folder)
            # In place: no checkpoint names an object before it is whole, and an incomplete one is written again.
            write(path, data, os.O_TRUNC)
            self._unsynced.add(path)
        if self._stored is not None:
            self._stored.add(name)

    def read(self, name: str) -> bytes:
        """Return the bytes of an object; raise WireError if they are damaged."""
        path = self._folder / name
        data = path.read_bytes() if path.exists() else self._packs.read(name)
        check_digest(f"{self._folder.name}/{name}", data, name)
        return data

    def compare_again(self) -> None:
        """Compare objects with their files when they are stored next: others may have changed the files."""
        self._written.clear()

    def unsynced(self) -> Iterator[Path]:
        """Yield the files, and their folder, that were written since :meth:`mark_synced`."""
        yield from self._unsynced
        if self._unsynced:
            yield self._folder

    def mark_synced(self) -> None:
        """Note that all objects are on the disk."""
        self._unsynced = set()
        self._packs.close()

    def keep(self, used: set[str]) -> None:
        """Delete all other objects."""
        if self._stored is None:
            self._stored = {path.name for path in self._folder.glob("*") if path.suffix != SUFFIX}
        for name in self._stored - used:
            (self._folder / name).unlink(missing_ok=True)
        self._stored &= used
        self._packs.keep(used)
        self._written &= used
        self._unsynced = {path for path in self._unsynced if path.exists()}


def check_digest(name: str, data: bytes, wanted: str) -> None:
    """Raise a WireError if data do not have the SHA-256 ``wanted``; ``name`` is that of the file."""
    found = sha256(data).hexdigest()
    if found != wanted:
        raise WireError(f"{name} has SHA-256 {shorten(found)} where {shorten(wanted)} was written")


def shorten(digest: str) -> str:
    """Return the beginning of a digest, for messages."""
    return f"{digest[:12]}..."
