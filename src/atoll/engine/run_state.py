"""Hold the totals, scores and lines of metrics of a run so far, and convert them for checkpoints."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..clients.evaluation import Score
from ..clients.score_table import ScoreTable
from ..clients.tasks import Dropped, Rejection, RoundLog, Start
from ..core.group_scores import Columns
from ..simulation.clock import Clock
from ..storage.metrics import MissedAnswer, NonFiniteState, PersonalScores, RejectedUpload, RoundMetrics
from ..typing import ClientId
from ..utils.files import without_nan
from ..utils.undo import UndoDict


@dataclass
class Totals:
    """Sums over all rounds so far."""

    up: int = 0  # bytes
    down: int = 0
    client_flops: float = 0.0
    server_flops: float = 0.0
    seconds: float = 0.0
    local_seconds: float = 0.0  # simulated, of all clients' work before their uploads
    participations: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # number of missed answers, by reason
    empty: int = 0  # rounds without any answer

    def add(self, log: RoundLog, client_flops: float, server_flops: float) -> None:
        """Add a round, with the same arguments as ``RunState.add``."""
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
    """Totals, scores and lines of metrics of a run. A checkpoint holds these besides the server and the clients."""

    round: int = 0  # rounds completed
    status: str = "running"  # then "finished", "stopped", "diverged" or "exhausted"
    totals: Totals = field(default_factory=Totals)
    clocks: dict[str, Clock] = field(default_factory=_clocks)  # simulated time, with and without overlap
    before: ScoreTable = field(default_factory=ScoreTable)  # latest score of each evaluated client
    after: ScoreTable = field(default_factory=ScoreTable)
    rejected: list[RejectedUpload] = field(default_factory=list)  # since the last line
    dropped: list[MissedAnswer] = field(default_factory=list)  # likewise
    not_finite: list[NonFiniteState] = field(default_factory=list)  # likewise; states that held NaN or infinity
    strikes: dict[ClientId, int] = field(default_factory=dict)  # number of rejected uploads, of clients with any
    working: dict[ClientId, Start] = field(default_factory=dict)  # clients at work that started in an earlier round
    # number of accepted uploads, of clients with any
    participations: UndoDict[ClientId, int] = field(default_factory=UndoDict)
    lines: list[RoundMetrics] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)  # a table for each evaluated round, for clients.parquet

    def excluded(self, strikes: int) -> list[ClientId]:
        """Return the clients with at least ``strikes`` rejected uploads; none if ``strikes`` is 0."""
        return sorted(i for i, count in self.strikes.items() if 0 < strikes <= count)

    def add(self, log: RoundLog, client_flops: float, server_flops: float) -> None:
        """Add a round.

        Args:
            log: record of the round.
            client_flops: floating-point operations of the clients that worked.
            server_flops: floating-point operations of the server.
        """
        self.totals.add(log, client_flops, server_flops)
        self.before.update(log.before)
        self.after.update(log.after)
        self.rejected += [_rejected(rejection) for rejection in log.rejected]
        self.dropped += [_missed(dropped) for dropped in log.dropped]
        self.not_finite += [{"client": i, "round": log.t + 1} for i in log.not_finite]
        for rejection in log.rejected:
            self.strikes[rejection.client] = self.strikes.get(rejection.client, 0) + 1

    def count_participations(self, clients: Iterable[ClientId]) -> None:
        """Count one more participation of each of the clients."""
        for i in clients:
            self.participations[i] = self.participations.get(i, 0) + 1

    def start_line(self) -> None:
        """Clear the incidents that the last line of metrics has reported."""
        self.rejected = []
        self.dropped = []
        self.not_finite = []

    def begin_round(self) -> "RunState":
        """Return the state as it is now, to go back to by :meth:`undo_round`.

        Tables with an entry for each client are shared with the result and remember their changes from now on: a copy
        of them in every round would cost more the more clients there are.
        """
        for table in self._client_tables():
            table.begin()
        entries = {name: copy(value) for name, value in vars(self).items() if type(value) in (list, dict)}
        totals = replace(self.totals, dropped=dict(self.totals.dropped))
        clocks = {name: copy(clock) for name, clock in self.clocks.items()}
        return replace(self, **entries | {"totals": totals, "clocks": clocks})

    def undo_round(self) -> None:
        """Undo the changes of client tables since :meth:`begin_round` returned this state."""
        for table in self._client_tables():
            table.undo()

    def _client_tables(self) -> list["ScoreTable | UndoDict[ClientId, Any]"]:
        return [self.before, self.after, self.participations, *(clock.free for clock in self.clocks.values())]

    def drop_early_end(self, is_evaluated: Callable[[int], bool]) -> bool:
        """Remove lines of rounds that were evaluated only because the run used to end there.

        Rejections in these lines go to the next line.

        Args:
            is_evaluated: whether a round, counted from 0, is evaluated in the longer run.

        Returns:
            Whether there were such lines.
        """
        early = [line for line in self.lines if not is_evaluated(line["round"] - 1)]
        self.rejected = [entry for line in early for entry in line["rejected"]] + self.rejected
        self.dropped = [entry for line in early for entry in line.get("dropped", [])] + self.dropped
        self.not_finite = [entry for line in early for entry in line.get("not_finite", [])] + self.not_finite
        self.lines = [line for line in self.lines if line not in early]
        kept = pa.array([line["round"] for line in self.lines], pa.int64())
        self.rows = [rows.filter(pc.is_in(rows["round"], kept)) for rows in self.rows]
        return bool(early)

    def table(self) -> pa.Table:
        """Return all rows so far as one table. A dict for each row would take ten times the memory."""
        return pa.concat_tables(self.rows, promote_options="default").combine_chunks() if self.rows else pa.table({})

    def score_tables(self) -> dict[str, ScoreTable]:
        """Return the latest scores of clients, before and after training."""
        return {"before": self.before, "after": self.after}

    def to_json(self) -> dict[str, Any]:
        """Return all values but scores of clients and table rows, which a checkpoint stores in other forms."""
        names = ("status", "rejected", "dropped", "not_finite", "strikes", "participations")
        plain = {name: getattr(self, name) for name in names}
        plain["lines"] = [without_nan(line) for line in self.lines]  # A NaN left makes the encoder begin again.
        plain |= {name: table.clients() for name, table in self.score_tables().items()}
        clocks = {name: {"server": clock.server, "free": clock.free} for name, clock in self.clocks.items()}
        working = {i: start._asdict() for i, start in self.working.items()}
        return plain | {"totals": asdict(self.totals), "clocks": clocks, "working": working}


def _rejected(rejection: Rejection) -> RejectedUpload:
    return {
        "client": rejection.client,
        "round": rejection.round,
        "field": rejection.field,
        "reason": rejection.reason,
    }


def _missed(dropped: Dropped) -> MissedAnswer:
    return {"client": dropped.client, "round": dropped.round, "why": dropped.why}


def from_json(done: int, stored: Mapping[str, Any], scores: Mapping[str, Columns], rows: pa.Table) -> RunState:
    """Restore the state of a run from a checkpoint.

    Args:
        done: number of rounds completed.
        stored: values from ``RunState.to_json``.
        scores: columns of the latest scores of clients, by name of the table.
        rows: table of all evaluated rounds.
    """
    clocks = {
        name: Clock(clock.overlap, stored["clocks"][name]["server"], UndoDict(stored["clocks"][name]["free"]))
        for name, clock in _clocks().items()
    }
    return RunState(
        done,
        stored["status"],
        Totals(**stored["totals"]),
        clocks,
        ScoreTable.restore(stored["before"], scores.get("before", {})),
        ScoreTable.restore(stored["after"], scores.get("after", {})),
        list(stored["rejected"]),
        list(stored.get("dropped", [])),  # absent from checkpoints of older versions
        list(stored.get("not_finite", [])),
        dict(stored.get("strikes", {})),
        {i: Start(**start) for i, start in stored.get("working", {}).items()},
        UndoDict(stored.get("participations", {})),
        [_line(line) for line in stored["lines"]],
        [rows] if rows.num_rows else [],
    )


def _scores(stored: Mapping[str, Mapping[str, float | None]]) -> dict[str, Score]:
    """Replace null, the form of an undefined number in JSON, by NaN."""
    return {i: {k: float("nan") if v is None else v for k, v in score.items()} for i, score in stored.items()}


def _line(stored: RoundMetrics) -> RoundMetrics:
    personal = cast(PersonalScores, _scores(cast(Any, stored["personal"])))
    generic = stored["generic"]
    if generic is not None:
        scores = _scores({"global": generic["global"], "local": generic["local"]})
        generic = {"source": generic["source"], "global": scores["global"], "local": scores["local"]}
    return {**stored, "personal": personal, "generic": generic}
