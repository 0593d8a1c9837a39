"""The budget of a run: what may be released, what has been; written down before it happens."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path

from ..errors import AtollError
from ..utils.files import to_json
from .accountant import epsilon_of, noise_multiplier

JOURNAL = "privacy.jsonl"


@dataclass
class Budget:
    """Releases with one noise multiplier, chosen so that ``planned`` of them spend the whole of epsilon.

    A client that is absent has spent as much as one that is there: the bound is for whoever takes part in every round.
    """

    epsilon: float
    delta: float
    planned: int  # releases
    made: int = 0

    @cached_property
    def multiplier(self) -> float:
        return noise_multiplier(self.epsilon, self.delta, self.planned)

    def after(self, releases: int) -> float:
        """Epsilon once so many releases have been made."""
        return epsilon_of(self.delta, sqrt(releases) / self.multiplier)

    @property
    def spent(self) -> float:
        return self.after(self.made)

    def allows(self, more: int) -> bool:
        return self.made + more <= self.planned


class Journal:
    """A line for every exchange, on disk before the exchange begins: what was spent is never forgotten.

    An exchange that a crash cut short counts: some of its releases may have been made. So does one that is made again
    after a crash, because its noise is drawn afresh.
    """

    def __init__(self, folder: Path | None):
        self._path = folder / JOURNAL if folder else None

    def made(self) -> int:
        """Releases that are written down. A line that a crash cut off goes: nothing was released after it."""
        if self._path is None or not self._path.exists():
            return 0
        *lines, torn = self._path.read_bytes().split(b"\n")
        if torn:
            os.truncate(self._path, self._path.stat().st_size - len(torn))
        try:
            return sum(_releases(line) for line in lines)
        except ValueError as reason:
            raise AtollError(
                f"{str(self._path)!r} is damaged ({reason}), and without it nobody knows what is left of the privacy "
                "budget. Start again with --force, which replaces the run."
            ) from None

    def write(self, releases: int, t: int, epsilon: float) -> None:
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
