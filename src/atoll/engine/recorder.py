"""Record a run in its directory: lines of metrics, the audit log, the tables and the summary."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from ..clients.fingerprints import fingerprint_upload
from ..clients.tasks import ClientUpload, RoundLog
from ..config import Config
from ..core.schema import UploadError
from ..core.serialization import encode
from ..core.task import Round
from ..data.tables import statistics_files
from ..data.tables.preparations import PREPARATION, Preparations
from ..simulation.clock import Stamp
from ..storage import audit_log, environment_file
from ..storage.audit_log import AuditLog
from ..storage.metrics import GenericScores, OptionalMetrics, PersonalScores, RoundMetrics
from ..storage.run_dir import RunDir, to_parquet
from .run_state import RunState


def make_metrics_line(
    log: RoundLog,
    run_state: RunState,
    *,
    personal: PersonalScores,
    generic: GenericScores | None,
    stamps: Mapping[str, Stamp],
    optional: OptionalMetrics,
) -> RoundMetrics:
    """Make the line of metrics of an evaluated round.

    Args:
        log: record of the round.
        run_state: totals, and the rejections since the last line.
        personal: scores of the personal models.
        generic: scores of the generic model, if there is one.
        stamps: simulated times at which the round ended.
        optional: further entries.
    """
    totals = run_state.totals
    return {
        "round": log.t + 1,
        "personal": personal,
        "generic": generic,
        "bytes": {"up": totals.up, "down": totals.down},
        "flops": {"clients": totals.client_flops, "server": totals.server_flops},
        "clock": {name: {"generic": stamp.generic, "personal": stamp.personal} for name, stamp in stamps.items()},
        "participants": log.cohort,
        "rejected": run_state.rejected,
        **_incidents(run_state),
        **optional,
        "seconds": totals.seconds,
    }


def _incidents(run_state: RunState) -> OptionalMetrics:
    """Return the missed answers and the states with NaN or infinity since the last line, if there are any."""
    found: OptionalMetrics = {}
    if run_state.dropped:
        found["dropped"] = run_state.dropped
    if run_state.not_finite:
        found["not_finite"] = run_state.not_finite
    return found


class Recorder(Protocol):
    """Records a run."""

    def open(self, lines: Sequence[RoundMetrics], done: int) -> list[str]:
        """Start recording.

        Args:
            lines: lines of metrics of earlier rounds.
            done: number of earlier rounds.

        Returns:
            Sentences for the user, if the earlier rounds were computed under other conditions.
        """
        ...

    def record_upload(self, r: Round, outcome: ClientUpload, flaw: UploadError | None) -> None:
        """Record an upload after validation, with its error if it was rejected."""
        ...

    def record_metrics(self, line: RoundMetrics) -> None:
        """Record the metrics of an evaluated round."""
        ...

    def sync(self) -> None:
        """Flush to disk everything that a checkpoint relies on."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return further entries of the summary."""
        ...

    def finish(self, table: pa.Table, summary: Mapping[str, Any]) -> None:
        """Record the results of a run that has ended.

        Args:
            table: scores of every client in every evaluated round.
            summary: what summary.json holds.
        """
        ...


class NullRecorder:
    """Records nothing, for runs without a directory."""

    def open(self, lines: Sequence[RoundMetrics], done: int) -> list[str]:
        return []

    def record_upload(self, r: Round, outcome: ClientUpload, flaw: UploadError | None) -> None:
        """Do nothing."""

    def record_metrics(self, line: RoundMetrics) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def summary(self) -> dict[str, Any]:
        return {}

    def finish(self, table: pa.Table, summary: Mapping[str, Any]) -> None:
        """Do nothing."""


class RunRecorder:
    """Writes the files of a run directory.

    Args:
        run_dir: the directory, which this process has locked.
        config: the configuration of the run.
        holdings: content of holdings.json, the numbers of rows of the clients.
        settings: all settings of the method, with their values.
        preparations: how clients prepare raw rows, and what they sent to agree on it.
    """

    def __init__(
        self,
        run_dir: RunDir,
        config: Config,
        holdings: Mapping[str, Any],
        settings: Mapping[str, object] = MappingProxyType({}),
        preparations: Preparations = Preparations(),
    ):
        self._run_dir = run_dir
        self._config = config
        self._holdings = holdings
        self._settings = settings
        self._preparations = preparations
        self._audit_mark = audit_log.Mark()
        self._audit: AuditLog | None = None

    @property
    def audit(self) -> AuditLog:
        """Return the audit log. The recorder must be open."""
        assert self._audit is not None, "the recorder is not open"
        return self._audit

    def to_json(self) -> dict[str, Any]:
        """Return the end of the audit log, for a checkpoint."""
        return self.audit.mark()._asdict()

    def take_over(self, stored: Mapping[str, Any] | None) -> None:
        """Continue the audit log from its end in a checkpoint."""
        self._audit_mark = audit_log.Mark(**(stored or {}))

    def open(self, lines: Sequence[RoundMetrics], done: int) -> list[str]:
        folder = self._run_dir.path
        notes = environment_file.describe_changes(folder, "continued") if done else []
        digests = {"digest": self._config.data_digest, "partition": self._holdings.get("name")}
        session = environment_file.describe_session(digests, self._settings, done + 1)
        earlier = environment_file.read_sessions(folder) if done else []
        self._run_dir.write_json(environment_file.NAME, {"sessions": [*earlier, session]})
        self._run_dir.write_config(self._config, self._holdings.get("notes", ()))
        self._run_dir.write_json("holdings.json", self._holdings, indent=None)
        if self._preparations:
            self._run_dir.write_json(PREPARATION, self._preparations.to_json())
        if self._preparations.noise:
            kept = statistics_files.stored(self._preparations.noise, self._preparations.sent)
            self._run_dir.write_json(statistics_files.NAME, kept)
        self._run_dir.write_metrics(lines)
        self._run_dir.remove("summary.json")  # only a run that has ended has a summary
        self._audit = AuditLog(self._run_dir.path / audit_log.NAME, self._audit_mark)
        if not self._audit_mark.records:
            self._record_statistics()
        self._run_dir.sync()
        return notes

    def _record_statistics(self) -> None:
        """Record what clients sent before the first round, as uploads of round 0."""
        for client, sent in self._preparations.sent.items():
            data = encode(sent)
            self.audit.add(0, 0, client, len(data), sha256(data).hexdigest())

    def record_upload(self, r: Round, outcome: ClientUpload, flaw: UploadError | None) -> None:
        size, sha256 = outcome.fingerprint or fingerprint_upload(outcome.upload, flaw)
        self.audit.add(r.t + 1, r.exchange, outcome.sender, size, sha256, flaw, outcome.staleness)

    def record_metrics(self, line: RoundMetrics) -> None:
        self._run_dir.append_metrics(line)

    def sync(self) -> None:
        self._run_dir.check_place()
        self.audit.sync()

    def summary(self) -> dict[str, Any]:
        return {"audit": self.to_json()}

    def finish(self, table: pa.Table, summary: Mapping[str, Any]) -> None:
        self._run_dir.write_bytes("clients.parquet", to_parquet(table))
        self._run_dir.write_json("summary.json", summary)
        self._run_dir.sync()
