"""Limit what a server can make a site store: states, requests and the log of everything that was sent."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..transport.protocol import Refusal

FRESH = 60.0  # seconds for which a measurement of the folder is used
COPIES = 4  # An exchange stores the request, the upload, the reply and a state, each about as large as the request.
LINE = 2**10  # bytes of logs for each request


class DiskQuota:
    """Refuses requests once the site's folder of states has too many bytes.

    Args:
        folder: the folder.
        most: bytes that it may have.
        clock: measures seconds.
    """

    def __init__(self, folder: Path, most: int, clock: Callable[[], float] = time.monotonic):
        self._folder = folder
        self._most = most
        self._clock = clock
        self._measured: float | None = None  # time of the last measurement
        self._used = 0  # bytes at that time, and those that requests may have added since

    def take(self, request: int) -> None:
        """Count a request of some bytes; raise Refusal if the folder may become too large."""
        added = COPIES * request + LINE
        now = self._clock()
        if self._measured is None or now - self._measured > FRESH or self._used + added > self._most:
            self._used, self._measured = size_of(self._folder), now
        if self._used + added > self._most:
            raise Refusal(
                "rules",
                f"{self._folder} has {self._used / 2**30:.2f} GB, and 'allow: disk_gb' in site.yaml admits "
                f"{self._most / 2**30:.0f}. Delete the folders of runs that you do not need from "
                f"{self._folder / 'runs'}, or raise the limit.",
            )
        self._used += added


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder. Files that vanish meanwhile count as nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
