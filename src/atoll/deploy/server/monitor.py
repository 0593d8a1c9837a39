"""Watch a deployed federation: its runs, its sites, its status."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import AtollError
from ...utils.files import to_json
from ...utils.parsing import Json
from .. import pki
from ..federation_dir import FederationDir
from ..private_files import write_private
from .flower_control import Control, RunStatus, Unreachable
from .processes import reached, running

LOOK = 0.5  # seconds between two looks into the run directory
ASK = 2.0  # seconds between two requests to Flower
LOST = 60.0  # seconds without an answer after which Flower counts as ended


class Tail:
    """Reads new complete JSON lines of a growing file; starts again if the file was replaced."""

    def __init__(self, path: Path, skip: bool = False):
        self._path = path
        self._at = 0  # position after the last complete line
        self._inode = -1
        if skip:
            for _ in self.fresh():
                pass

    def fresh(self) -> Iterator[Json]:
        """Yield the lines that were added since the last call."""
        try:
            with self._path.open("rb") as f:
                yield from self._read(f.fileno(), f.read())
        except FileNotFoundError:
            return

    def _read(self, handle: int, data: bytes) -> Iterator[Json]:
        inode = os.fstat(handle).st_ino
        if inode != self._inode or len(data) < self._at:
            self._inode, self._at = inode, 0
        whole = data.rfind(b"\n") + 1
        lines, self._at = data[self._at : whole].splitlines(), max(self._at, whole)
        yield from (json.loads(line) for line in lines)


def follow(flower: Control, number: int, look: Callable[[], None]) -> RunStatus:
    """Wait until the run is over, calling ``look`` meanwhile; tolerate a short absence of Flower."""
    asked = answered = time.monotonic()
    while True:
        look()
        if time.monotonic() - asked >= ASK:
            asked = time.monotonic()
            try:
                status = flower.run(number)
            except Unreachable:
                if asked - answered > LOST:
                    raise
            else:
                answered = asked
                if status.over:
                    look()
                    return status
        time.sleep(LOOK)


class Book:
    """A file that maps runs of Flower to run directories."""

    def __init__(self, directory: FederationDir):
        self._path = directory.state / "runs.json"

    def read(self) -> dict[str, str]:
        """Return the run directories, by number of the run."""
        try:
            found: dict[str, str] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def write(self, number: int, out: str) -> None:
        """Add a run."""
        write_private(self._path, to_json({**self.read(), str(number): out}, indent=1).encode())


def going_on(flower: Control, book: Book, out: str) -> int | None:
    """Return the active run of this directory, or None.

    Raises:
        AtollError: if another run is active, because sites take part in one run at a time.
    """
    going = [run for run in flower.runs() if not run.over]
    for run in going:
        if book.read().get(str(run.id)) == out:
            return run.id
    if going:
        where = book.read().get(str(going[0].id), "an unknown place")
        raise AtollError(f"A run is going on already, in {where}. Wait for it, or end it: atoll deploy stop DIR")
    return None


LATEST = 5  # runs shown


def report(folder: Path) -> Json:
    """Return the status of a federation: server, sites and latest runs."""
    directory = FederationDir(folder)
    federation = directory.read()
    sites = {name: site.refusal() or "unknown" for name, site in federation.sites.items()}
    if running(directory) is None:
        return {"server": False, "sites": sites, "runs": []}
    names = {pki.spki(site.key.encode()): name for name, site in federation.accepted().items()}
    with reached(directory) as flower:
        for node in flower.nodes():
            if node.key in names:
                sites[names[node.key]] = "never seen" if node.status == "registered" else node.status
        places = Book(directory).read()
        runs = [run._asdict() | {"out": places.get(str(run.id), "")} for run in flower.runs()[:LATEST]]
    return {"server": True, "sites": sites, "runs": runs}
