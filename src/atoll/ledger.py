"""What has come of a run so far, and its form in a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .clock import Clock
from .core import ClientId
from .evaluate import Score

Line = dict[str, Any]  # one line of metrics.jsonl
Row = dict[str, Any]  # one row of clients.parquet


@dataclass
class Totals:
    up: int = 0  # bytes
    down: int = 0
    client_flops: float = 0.0
    server_flops: float = 0.0
    seconds: float = 0.0
    participations: int = 0


def _clocks() -> dict[str, Clock]:
    return {"waiting": Clock(overlap=False), "wait_free": Clock(overlap=True)}


@dataclass
class Ledger:
    """With the server's state and the clients' states, all that a checkpoint holds."""

    round: int = 0  # rounds completed
    status: str = "running"  # then "finished" or "diverged"
    totals: Totals = field(default_factory=Totals)
    clocks: dict[str, Clock] = field(default_factory=_clocks)  # simulated time, with and without overlap
    before: dict[ClientId, Score] = field(default_factory=dict)  # latest scores of every client examined so far
    after: dict[ClientId, Score] = field(default_factory=dict)
    rejected: list[Mapping[str, Any]] = field(default_factory=list)  # since the last line
    lines: list[Line] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the rows are stored as a table of their own."""
        plain = {name: getattr(self, name) for name in ("status", "before", "after", "rejected", "lines")}
        clocks = {name: {"server": clock.server, "free": clock.free} for name, clock in self.clocks.items()}
        return plain | {"totals": asdict(self.totals), "clocks": clocks}


def from_json(done: int, stored: Mapping[str, Any], rows: Sequence[Row]) -> Ledger:
    """The ledger after ``done`` rounds."""
    clocks = {name: Clock(clock.overlap, **stored["clocks"][name]) for name, clock in _clocks().items()}
    return Ledger(
        done,
        stored["status"],
        Totals(**stored["totals"]),
        clocks,
        _scores(stored["before"]),
        _scores(stored["after"]),
        list(stored["rejected"]),
        [_line(line) for line in stored["lines"]],
        list(rows),
    )


def _scores(stored: Mapping[str, Mapping[str, float | None]]) -> dict[str, Score]:
    """Scores as JSON keeps them: an undefined number is null there."""
    return {i: {k: float("nan") if v is None else v for k, v in score.items()} for i, score in stored.items()}


def _line(stored: Line) -> Line:
    personal, generic = _scores(stored["personal"]), stored["generic"]
    if generic:
        generic = {"source": generic["source"], **_scores({name: generic[name] for name in ("global", "local")})}
    return {**stored, "personal": personal, "generic": generic}
