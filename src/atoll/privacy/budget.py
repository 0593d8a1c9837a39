"""Keep the privacy budget of a run, and record every release on disk before it happens."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path

from ..errors import AtollError
from ..utils.files import to_json
from .accountant import compute_epsilon, compute_noise_multiplier

JOURNAL = "privacy.jsonl"


@dataclass
class Budget:
    """Privacy budget, with a noise multiplier for which ``planned`` releases spend the whole of epsilon.

    The bound holds for a client that takes part in every round; absent clients are counted as present.

    Args:
        epsilon: epsilon of all releases together.
        delta: delta of all releases together.
        planned: number of releases.
        made: number of releases so far.
    """

    epsilon: float
    delta: float
    planned: int
    made: int = 0

    @cached_property
    def multiplier(self) -> float:
        """Return the standard deviation of the noise, in units of the sensitivity."""
        return compute_noise_multiplier(self.epsilon, self.delta, self.planned)

    def after(self, releases: int) -> float:
        """Return the epsilon that is spent after a number of releases."""
        return compute_epsilon(self.delta, sqrt(releases) / self.multiplier)

    @property
    def spent(self) -> float:
        """Return the epsilon that is spent so far."""
        return self.after(self.made)

    def allows(self, more: int) -> bool:
        """Return True if ``more`` further releases stay within the budget."""
        return self.made + more <= self.planned


class Journal:
    """Records the releases of every exchange on disk before the exchange begins.

    An exchange that a crash interrupted counts, because some of its releases may have been made. An exchange that is
    repeated after a crash counts again, because its noise is drawn anew.

    Args:
        folder: folder of the journal, or None to record nothing.
    """

    def __init__(self, folder: Path | None):
        self._path = folder / JOURNAL if folder else None

    def made(self) -> int:
        """Return the number of recorded releases. Removes an incomplete last line, after which nothing was released."""
        if self._path is None or not self._path.exists():
            return 0
        *lines, torn = self._path.read_bytes().split(b"\n")
        if torn:
            os.truncate(self._path, self._path.stat().st_size - len(torn))
        try:
            return sum(_releases(line) for line in lines)
        except ValueError as reason:
            raise AtollError(
                f"{str(self._path)!r} is damaged ({reason}), so the rest of the privacy budget is "
                "unknown. Start again with --force, which replaces the run."
            ) from None

    def write(self, releases: int, t: int, epsilon: float) -> None:
        """Record the releases of round ``t`` and flush the line to disk."""
        if self._path is None:
            return
        line = to_json({"releases": releases, "round": t, "epsilon": epsilon}) + "\n"
        with self._path.open("ab") as f:
            f.write(line.encode())
            f.flush()
            os.fsync(f.fileno())


def _releases(line: bytes) -> int:
    found = json.loads(line)
    releases = found.get("releases") if isinstance(found, dict) else None
    if type(releases) is not int or releases < 0:
        raise ValueError("a line does not say how much was released")
    return releases
