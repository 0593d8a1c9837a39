"""A run of a federation: the job that the server's part reads, and following it from outside."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import AtollError
from ..files import to_json
from .control import Control, RunStatus, Unreachable
from .layout import Home, private_folder, write_private

LOOK = 0.5  # seconds between looks into the run directory
ASK = 2.0  # seconds between questions to Flower
LOST = 60.0  # seconds without an answer from Flower after which it is gone for us


@dataclass(frozen=True)
class Job:
    """What the server's part of a run has to know. In a file, because Flower's own settings are for small things."""

    federation: str  # folder of the federation
    out: str  # run directory
    config: Mapping[str, Any]
    sites: Sequence[str]
    nodes: Mapping[str, str]  # names of sites by Flower's numbers: by their keys, not by what they say
    round_timeout: float
    min_clients: int
    wait: float
    force: bool = False

    def write(self, home: Home) -> Path:
        folder = home.state / "jobs"
        private_folder(folder)
        path = folder / f"{Path(self.out).name}.json"
        write_private(path, to_json(asdict(self), indent=1).encode())
        return path


def nodes(home: Home) -> dict[str, str]:
    """Names of sites by Flower's numbers."""
    try:
        found: dict[str, str] = json.loads((home.state / "nodes.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


class Follower:
    """Tells what a run directory gains while a run goes on."""

    def __init__(self, out: Path, watch: Callable[[int, dict[str, Any]], None]):
        self._path, self._watch = out / "metrics.jsonl", watch
        self._seen = 0

    def look(self) -> None:
        for line in self._lines():
            self._seen = max(self._seen, line["round"])
            self._watch(line["round"], line)

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Whole lines of rounds not told yet; the file is written anew when a run goes on from a checkpoint."""
        try:
            text = self._path.read_text()
        except OSError:
            return
        for line in text.split("\n")[:-1]:
            found = json.loads(line)
            if found["round"] > self._seen:
                yield found


def follow(flower: Control, number: int, look: Callable[[], None]) -> RunStatus:
    """Until the run is over, one way or the other."""
    asked = answered = time.monotonic()
    while True:
        look()
        now = time.monotonic()
        if now - asked >= ASK:
            asked = now
            try:
                status = flower.run(number)
            except Unreachable:
                if now - answered > LOST:
                    raise
                continue
            answered = now
            if status.over:
                look()
                return status
        time.sleep(LOOK)


def check_idle(flower: Control) -> None:
    """A federation does one thing at a time: sites have one model in hand."""
    going = [run for run in flower.runs() if not run.over]
    if going:
        raise AtollError(
            f"A run is going on already (Flower's number {going[0].id}). Wait for it, or end it: atoll deploy stop DIR"
        )
