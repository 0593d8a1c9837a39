"""What has come of a run so far, and its form in a checkpoint."""

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

import pyarrow as pa

from ..clients.evaluation import Score
from ..clients.tasks import Dropped, Rejection, RoundLog
from ..simulation.clock import Clock
from ..storage.metrics import MissedAnswer, PersonalScores, RejectedUpload, RoundMetrics, SpoiltState
from ..typing import ClientId


@dataclass
class Totals:
    """Sums over all rounds so far."""

    up: int = 0  # bytes
    down: int = 0
    client_flops: float = 0.0
    server_flops: float = 0.0
    seconds: float = 0.0
    participations: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # answers that did not come, by reason
    empty: int = 0  # rounds in which nobody answered

    def add(self, log: RoundLog, client_flops: float, server_flops: float) -> None:
        """Count a round; ``RunState.add`` says what the arguments are."""
        self.up += sum(log.up.values())
        self.down += sum(log.down.values())
        self.participations += len(log.cohort)
        self.client_flops += client_flops
        self.server_flops += server_flops
        self.empty += log.is_empty
        for dropped in log.dropped:
            self.dropped[dropped.why] = self.dropped.get(dropped.why, 0) + 1


def _clocks() -> dict[str, Clock]:
    return {"waiting": Clock(overlap=False), "wait_free": Clock(overlap=True)}


@dataclass
class RunState:
    """With the server's state and the clients' states, all that a checkpoint holds."""

    round: int = 0  # rounds completed
    status: str = "running"  # then "finished", "diverged" or "exhausted" (no privacy budget left)
    totals: Totals = field(default_factory=Totals)
    clocks: dict[str, Clock] = field(default_factory=_clocks)  # simulated time, with and without overlap
    before: dict[ClientId, Score] = field(default_factory=dict)  # latest scores of every client examined so far
    after: dict[ClientId, Score] = field(default_factory=dict)
    rejected: list[RejectedUpload] = field(default_factory=list)  # since the last line
    dropped: list[MissedAnswer] = field(default_factory=list)  # likewise
    spoilt: list[SpoiltState] = field(default_factory=list)  # likewise: states that were not finite
    strikes: dict[ClientId, int] = field(default_factory=dict)  # uploads rejected so far, of those who had any
    lines: list[RoundMetrics] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)  # of clients.parquet: a table for each evaluated round

    def excluded(self, strikes: int) -> list[ClientId]:
        """Clients with so many strikes or more; nobody for 0."""
        return sorted(i for i, count in self.strikes.items() if 0 < strikes <= count)

    def add(self, log: RoundLog, client_flops: float, server_flops: float) -> None:
        """Count a round.

        Args:
            log: what happened in the round.
            client_flops: floating-point operations of the clients that worked.
            server_flops: floating-point operations of the server.
        """
        self.totals.add(log, client_flops, server_flops)
        self.before |= log.before
        self.after |= log.after
        self.rejected += [_rejected(rejection) for rejection in log.rejected]
        self.dropped += [_missed(dropped) for dropped in log.dropped]
        self.spoilt += [{"client": i, "round": log.t + 1} for i in log.not_finite]
        for rejection in log.rejected:
            self.strikes[rejection.client] = self.strikes.get(rejection.client, 0) + 1

    def start_line(self) -> None:
        """Forget rejections, absences and spoilt states: the last line has them."""
        self.rejected = []
        self.dropped = []
        self.spoilt = []

    def copy(self) -> "RunState":
        """Copy the state and all its containers, so that later entries leave the copy as it is."""
        made: RunState = _copied(self)
        return made

    def table(self) -> pa.Table:
        """All rows so far; columns, because a dict for each row takes ten times the memory."""
        return pa.concat_tables(self.rows, promote_options="default").combine_chunks() if self.rows else pa.table({})

    def to_json(self) -> dict[str, Any]:
        """Plain values; the rows are stored as a table of their own."""
        kept = ("status", "before", "after", "rejected", "dropped", "spoilt", "strikes", "lines")
        plain = {name: getattr(self, name) for name in kept}
        clocks = {name: {"server": clock.server, "free": clock.free} for name, clock in self.clocks.items()}
        return plain | {"totals": asdict(self.totals), "clocks": clocks}


def _rejected(rejection: Rejection) -> RejectedUpload:
    return {
        "client": rejection.client,
        "round": rejection.round,
        "field": rejection.field,
        "reason": rejection.reason,
    }


def _missed(dropped: Dropped) -> MissedAnswer:
    return {"client": dropped.client, "round": dropped.round, "why": dropped.why}


def _copied(value: Any) -> Any:
    """Copy a record field by field, down to the records in it; entries of containers never change and are shared."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _copied(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {name: _copied(entry) if is_dataclass(entry) else entry for name, entry in value.items()}
    return copy(value)


def from_json(done: int, stored: Mapping[str, Any], rows: pa.Table) -> RunState:
    """The ledger after ``done`` rounds."""
    clocks = {name: Clock(clock.overlap, **stored["clocks"][name]) for name, clock in _clocks().items()}
    return RunState(
        done,
        stored["status"],
        Totals(**stored["totals"]),
        clocks,
        _scores(stored["before"]),
        _scores(stored["after"]),
        list(stored["rejected"]),
        list(stored.get("dropped", [])),  # checkpoints of older versions have none
        list(stored.get("spoilt", [])),
        dict(stored.get("strikes", {})),
        [_line(line) for line in stored["lines"]],
        [rows] if rows.num_rows else [],
    )


def _scores(stored: Mapping[str, Mapping[str, float | None]]) -> dict[str, Score]:
    """Scores as JSON keeps them: an undefined number is null there."""
    return {i: {k: float("nan") if v is None else v for k, v in score.items()} for i, score in stored.items()}


def _line(stored: RoundMetrics) -> RoundMetrics:
    personal = cast(PersonalScores, _scores(cast(Any, stored["personal"])))
    generic = stored["generic"]
    if generic is not None:
        scores = _scores({"global": generic["global"], "local": generic["local"]})
        generic = {"source": generic["source"], "global": scores["global"], "local": scores["local"]}
    return {**stored, "personal": personal, "generic": generic}
