"""Find the runs below a folder, and read a run again when its files change."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Lock

from ..errors import AtollError
from ..storage.run_reader import MARKS
from ..storage.tolerant_reader import PartialRun, Stamp, look, stamp
from . import listing

FOLDERS = 20_000  # folders searched at most, in case the root of a disk is given
KEPT = 32  # runs kept in memory completely; of all others, only the row


class Unknown(AtollError):
    """Raised for an id that no run has."""


class RunIndex:
    """An index of runs, safe for several threads. An id is a hash of a path and is never turned back into one."""

    def __init__(self, root: Path):
        self.root = root
        self._lock = Lock()
        self._paths: dict[str, Path] = {}
        self._rows: dict[str, tuple[Stamp, dict[str, object]]] = {}
        self._seen: OrderedDict[str, tuple[Stamp, PartialRun]] = OrderedDict()

    def rows(self) -> list[dict[str, object]]:
        """Return all runs, sorted by name."""
        with self._lock:
            self._refresh()
            return [self._row(identity) for identity in self._paths]

    def row(self, identity: str) -> dict[str, object]:
        """Return the line of one run in the list."""
        with self._lock:
            self._path(identity)
            return self._row(identity)

    def seen(self, identity: str) -> PartialRun:
        """Return everything that can be read of one run."""
        with self._lock:
            path = self._path(identity)
            return self._look(identity, path, stamp(path))

    def _path(self, identity: str) -> Path:
        if identity not in self._paths:
            self._refresh()
        if identity not in self._paths:
            raise Unknown("This run no longer exists. Go back to the list.")
        return self._paths[identity]

    def _refresh(self) -> None:
        found = sorted(find(self.root), key=lambda path: path.parts)
        self._paths = {identity_of(self.name(path)): path for path in found}
        for known in (self._rows, self._seen):
            for removed in known.keys() - self._paths.keys():
                del known[removed]

    def name(self, path: Path) -> str:
        """Return the path of a run relative to the root; the root itself has its own name."""
        inside = path.relative_to(self.root).as_posix()
        return self.root.resolve().name if inside == "." else inside

    def _row(self, identity: str) -> dict[str, object]:
        path = self._paths[identity]
        now = stamp(path)
        known = self._rows.get(identity)
        if known is None or known[0] != now:
            known = self._rows[identity] = now, self._read(identity, path, now)
        return known[1]

    def _read(self, identity: str, path: Path, now: Stamp) -> dict[str, object]:
        try:
            return listing.row(identity, self.name(path), self._look(identity, path, now))
        except Exception as reason:  # A damaged file of one run must not hide the others.
            return listing.damaged_row(
                identity, self.name(path), f"It cannot be read ({type(reason).__name__}: {reason})."
            )

    def _look(self, identity: str, path: Path, now: Stamp) -> PartialRun:
        known = self._seen.pop(identity, None)
        if known is None or known[0] != now:
            known = now, look(path, now.process)
        self._seen[identity] = known
        while len(self._seen) > KEPT:
            self._seen.popitem(last=False)
        return known[1]


def identity_of(name: str) -> str:
    """Return the id of a run in URLs: a hash of its name."""
    return sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]


def find(root: Path) -> Iterator[Path]:
    """Yield run directories at and below ``root``, without following links and without searching inside runs."""
    for looked, (folder, below, files) in enumerate(os.walk(root)):
        if any(mark in files for mark in MARKS):
            yield Path(folder)
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
        if looked >= FOLDERS:
            return
