"""Limit the bytes that each site can store at the server: by what the run has asked it for, and a floor per hour.

The server app writes down how many bytes it has asked each site for (:class:`AskedBytes`). The gate counts what arrives
(:class:`UploadQuota`) and refuses the rest, because Flower itself stores whatever a registered site pushes.
"""

import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ...typing import ClientId
from ...utils.files import to_json
from ..private_files import write_private
from .access import Refusal

HOUR = 3600.0  # seconds
REPEATS = 2  # times that a site may send what it was asked for: a push that was cut off is sent again
ASKED = "asked.json"


class AskedBytes:
    """The bytes that a run has asked each site for, in a file that the gate reads.

    Args:
        state: the folder of the running server.
    """

    def __init__(self, state: Path):
        self._path = state / ASKED
        self._run = secrets.token_hex(8)
        self._bytes: Counter[ClientId] = Counter()

    def add(self, sizes: Mapping[ClientId, int]) -> None:
        """Add requests for replies of at most ``sizes`` bytes."""
        self._bytes.update(sizes)
        write_private(self._path, to_json({"run": self._run, "bytes": self._bytes}).encode())


class UploadQuota:
    """Counts the bytes that sites push. What was asked for is used first, then the floor of the hour.

    Args:
        state: the folder of the running server.
        floor: returns the bytes of an hour that each site may send beside what it was asked for.
        clock: measures seconds.
        log: writes a line to the log of the gate.
    """

    def __init__(
        self,
        state: Path,
        floor: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ):
        self._floor = floor
        self._clock = clock
        self._log = log
        self._asked = _Asked(state / ASKED)
        self._run = ""
        self._answered: Counter[str] = Counter()  # bytes of this run, against those that were asked for
        self._others: Counter[str] = Counter()  # all other bytes of the hour
        self._hour = clock()
        self._refused: set[str] = set()  # sites whose refusal in this hour is in the log

    def take(self, site: str, size: int) -> None:
        """Count ``size`` more bytes of a site; raise Refusal if they are too many."""
        self._begin_hour()
        run, asked = self._asked.read()
        if run != self._run:
            self._run, self._answered = run, Counter()
        answering = min(size, max(0, REPEATS * asked.get(site, 0) - self._answered[site]))
        others = size - answering
        if others and self._others[site] + others > self._floor():
            self._report(site)
            raise Refusal(429, "more bytes than the run has asked for")
        self._answered[site] += answering
        self._others[site] += others

    def _begin_hour(self) -> None:
        if self._clock() - self._hour >= HOUR:
            self._hour = self._clock()
            self._others.clear()
            self._refused.clear()

    def _report(self, site: str) -> None:
        if site not in self._refused:
            self._refused.add(site)
            self._log(
                f"{time.strftime('%H:%M:%S')} refused an upload of {site}: it is more than the run has asked for, and "
                f"the {self._floor() // 2**20} MB that each site may send beside it are used up for this hour "
                "(upload_mb_per_hour in federation.yaml)"
            )


class _Asked:
    """Reads the file of :class:`AskedBytes` when it has changed."""

    def __init__(self, path: Path):
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._found: tuple[str, dict[str, int]] = ("", {})

    def read(self) -> tuple[str, dict[str, int]]:
        """Return the run, and the bytes that it has asked each site for."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return "", {}
        mark = found.st_mtime_ns, found.st_ino
        if mark != self._seen:
            values = json.loads(self._path.read_bytes())
            self._seen, self._found = mark, (values["run"], values["bytes"])
        return self._found
