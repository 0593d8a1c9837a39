"""A run of the federation, seen from outside: what its directory gains, what Flower says of it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import AtollError
from .control import Control, RunStatus, Unreachable

LOOK = 0.5  # seconds between looks into the run directory
ASK = 2.0  # seconds between questions to Flower
LOST = 60.0  # seconds without an answer from Flower after which it is gone for us


class Tail:
    """Whole lines of JSON that a file has gained; from the beginning again if it was written anew."""

    def __init__(self, path: Path, skip: bool = False):
        self._path, self._at, self._inode = path, 0, -1
        if skip:
            for _ in self.fresh():
                pass

    def fresh(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as f:
                yield from self._read(f.fileno(), f.read())
        except FileNotFoundError:
            return

    def _read(self, handle: int, data: bytes) -> Iterator[dict[str, Any]]:
        inode = os.fstat(handle).st_ino
        if inode != self._inode or len(data) < self._at:
            self._inode, self._at = inode, 0
        whole = data.rfind(b"\n") + 1
        lines, self._at = data[self._at : whole].splitlines(), max(self._at, whole)
        yield from (json.loads(line) for line in lines)


def follow(flower: Control, number: int, look: Callable[[], None]) -> RunStatus:
    """Until the run is over, one way or the other; a short absence of Flower is borne."""
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


def check_idle(flower: Control) -> None:
    """A federation does one thing at a time: a site has the models of one run in hand."""
    going = [run for run in flower.runs() if not run.over]
    if going:
        raise AtollError(
            f"A run is going on already (Flower's number {going[0].id}). Wait for it, or end it: atoll deploy stop DIR"
        )
