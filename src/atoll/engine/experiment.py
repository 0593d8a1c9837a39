"""A whole run: rounds, evaluation, metrics, checkpoints, summary."""

import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..aggregation.fixed_point import Fixed, largest
from ..aggregation.robust import guard_for
from ..backends.base import Backend
from ..backends.loop import LoopBackend
from ..backends.multiprocess import ProcessBackend
from ..backends.ray_backend import RayBackend
from ..backends.vmap import VmapBackend
from ..clients import fingerprints
from ..clients.state_store import DiskStore, Kept, MemoryStore, Store, state_digest
from ..clients.tasks import ClientUpload, RoundLog, UploadFilter, no_filter
from ..clients.validation.checks import LARGEST
from ..clients.validation.validator import Validator
from ..core.method import contract
from ..core.schema import UploadError, constraints_of
from ..core.serialization import digest
from ..core.task import Round
from ..errors import AtollError
from ..privacy.policy import Privacy
from ..simulation.costs import Costs, operations, seconds
from ..simulation.timing import RoundTimer
from ..storage import audit_log
from ..storage.audit_log import AuditLog
from ..storage.checkpoint import Checkpoints, Snapshot
from ..storage.run_dir import RunDir, from_parquet, to_parquet
from ..typing import ClientId
from ..utils.runtime import kept_memory, on_device, one_thread
from ..utils.signals import stoppable, uninterrupted
from .cohort import sample_cohort
from .compatibility import affects
from .evaluator import Evaluator
from .result import Result
from .round import RoundPolicy, run_round
from .run_state import RoundMetrics, RunState, from_json
from .setup import Setup, faults_of
from .summary import incidents, summarise

Watch = Callable[[int, RoundMetrics | None], None]  # told of every round, and of its line if it was evaluated


def run_experiment(setup: Setup, run_dir: RunDir | None = None, watch: Watch | None = None) -> Result:
    """Run to the end, from the latest checkpoint if the directory has one.

    Told to stop, it makes a checkpoint of the last whole round and raises KeyboardInterrupt.
    """
    with one_thread(), kept_memory(), on_device(setup.config.device), stoppable():
        return Experiment(setup, run_dir).run(watch or (lambda t, line: None))


class Extra(Protocol):
    """What else has to go on where it was: its value after the last whole round is an entry of every checkpoint."""

    def to_json(self) -> Any:
        """Plain JSON values; small, because it is asked after every round."""
        ...

    def take_over(self, stored: Any) -> None:
        """Go on from a stored value; None if there is no checkpoint, or it has no such entry."""
        ...


class OpenRound(NamedTuple):
    """How things stood when a round began; what has changed since counts once the round is closed."""

    server: Any
    run_state: RunState
    changed: set[ClientId]


class Experiment:
    """One run in progress."""

    def __init__(self, setup: Setup, run_dir: RunDir | None):
        self.config, self.method, self.pool = setup.config, setup.method, setup.pool
        self.setup, self.run_dir, self.task = setup, run_dir, setup.pool.task()
        self.types = contract(self.method)
        if self.pool.remote:
            self.types = self.types._replace(state=Kept)
        self.store, self.per_client_states = (
            self._open_store("states", self.types.state),
            self._open_store("desks", self.types.per_client),
        )
        self.privacy = Privacy(self.config, self.method, self.pool, run_dir.path if run_dir else None)
        self.faults = faults_of(self.config, self.pool.ids)
        self.times = RoundTimer(
            setup.devices,
            self.pool,
            self.faults,
            seed=self.config.seed,
            deadline=self.config.deadline,
            constraints=constraints_of(self.method),
        )
        honest: UploadFilter = self.privacy.upload_filter if self.privacy.on else no_filter
        self.upload_filter = self.faults.upload_filter(honest, constraints_of(self.method))
        self.backend = self._open_backend()
        place = self.method, self.pool, self.backend, self.config.seed, self.per_client_states
        self.evaluator = Evaluator(*place, byzantine=self.faults.poisoned)
        self.server = self.evaluator.first_server()
        self._lasting: set[ClientId] = set()  # whose latest scores are those of the states that they have now
        limits = self.config.max_norm, self._largest(), self.privacy.spare_rows
        self.checks = Validator(self.method, self.pool, self.config.seed, *limits)
        self.run_state, self.notes = RunState(), list[str]()
        self.guard = guard_for(self.method, self.config.robust, self.notes.append) if self.config.robust else None
        self.fixed = Fixed(self.notes.append) if self.config.sums == "fixed" else None
        if (poison := self.faults.poison) and not affects(poison.kind, self.method, self.pool):
            self.notes.append(f"--poison {self.config.poison} changes nothing that {self.config.method} uploads.")
        self._objects: dict[ClientId, str] = {}  # what the last checkpoint holds of each client
        self._per_client_objects: dict[ClientId, str] = {}
        self._changed: set[ClientId] = set()
        self._saved = 0  # the round of the last checkpoint
        self.extras: dict[str, Extra] = {"privacy": self.privacy}  # by the names of their entries in checkpoints
        self._entries: dict[str, Any] = {}
        self._open: OpenRound | None = None  # None between rounds
        self._audit: AuditLog | None = None  # kept in a run directory

    def run(self, watch: Watch) -> Result:
        try:
            if self.run_dir:
                self._resume()
                self._open_files(self.run_dir)
            self._stop_if_spent()
            rehearsal = (self.method, self.pool, self.config.seed, len(self._cohort(0)))
            flops = operations(*rehearsal)
            work = seconds(*rehearsal) if self.setup.devices.compute == "measured" else flops
            while self.run_state.round < self.config.rounds and self.run_state.status == "running":
                watch(*self._round(flops, work))
            if self.run_state.status == "running":
                self.run_state.status = "finished"
            if not self.run_state.lines:
                raise AtollError(self.privacy.exhausted())
            return self._finish()
        except KeyboardInterrupt:
            with uninterrupted():
                self._break_off()
            raise
        finally:
            self.backend.close()

    def _largest(self) -> float:
        """How large a number of an upload may be: so that no client can make a fixed sum overflow."""
        rows = len(self.pool.train.all.y)
        return min(LARGEST, largest(rows)) if self.config.sums == "fixed" else LARGEST

    def _open_store(self, name: str, kind: type[Any]) -> Store:
        if self.config.store == "memory" or self.run_dir is None:
            return MemoryStore()
        return DiskStore(self.run_dir.path / name, kind, self.config.cache)

    def _open_backend(self) -> Backend:
        audited = self.run_dir is not None
        if self.config.backend == "vmap":
            return VmapBackend(self.pool, self.store, self.upload_filter)
        if self.config.backend == "ray":
            return RayBackend(self.pool, self.store, self.config.workers, self.upload_filter, audited)
        workers = min(self.config.workers or os.cpu_count() or 1, len(self._cohort(0)))
        if self.config.backend == "processes" and workers > 1:
            return ProcessBackend(self.pool, self.store, workers, self.upload_filter, audited)
        return LoopBackend(self.pool, self.store, self.upload_filter)

    def _open_files(self, run_dir: RunDir) -> None:
        run_dir.write_config(self.config)
        run_dir.write_json("holdings.json", self._holdings())
        run_dir.write_metrics(self.run_state.lines)
        run_dir.remove("summary.json")  # it is the mark of a run that has ended
        self._audit = AuditLog(run_dir.path / audit_log.NAME, audit_log.Mark(**self._entries.get("audit", {})))
        run_dir.sync()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _round(self, flops: Costs, work: Costs) -> tuple[int, RoundMetrics | None]:
        t, started, config = self.run_state.round, time.perf_counter(), self.config
        self._open = OpenRound(self.server, self.run_state.copy(), set(self._changed))
        self.privacy.reserve(t)
        rules = RoundPolicy(
            self.checks,
            self.run_state.excluded(config.strikes),
            self.guard,
            self.fixed,
            self.times.faults(t, work, self.run_state.clocks["wait_free" if config.wait_free else "waiting"]),
            self._note if self._audit else None,
        )
        place = self.method, self.task, self.backend, self.server
        known = {i: self.run_state.after[i] for i in self._lasting}
        self.server, log = run_round(
            *place, t, config.seed, config.rate, self._to_evaluate(t), self.per_client_states, rules, known
        )
        self._lasting = (self._lasting - set(log.accepted)) | log.lasting
        self._count(log, flops)
        self.stamps = self.times.stamps(log, work, self.run_state.clocks)
        if self._is_over(log):
            self.run_state.status = "diverged"
        elif t + 1 < config.rounds:
            self._stop_if_spent()
        line = self._evaluate(log) if self._evaluated(t) or self.run_state.status != "running" else None
        self.run_state.totals.seconds += time.perf_counter() - started
        if line is not None:
            self._record(line)
        self._close(t + 1)
        return t + 1, line

    def _close(self, done: int) -> None:
        """The round counts from here on."""
        with uninterrupted():
            self.run_state.round, self._open = done, None
            self._entries = {name: extra.to_json() for name, extra in self.extras.items()}
            if self._audit:
                self._entries["audit"] = self._audit.mark()._asdict()
            for store in (self.store, self.per_client_states):
                store.keep()
            every = 1 if self.privacy.budget else self.config.checkpoint_every  # a round made again is paid for again
            if self.run_dir and done % every == 0:
                self._checkpoint()

    def _break_off(self) -> None:
        """Forget the round that is under way, and keep the last whole one."""
        if self._open:
            self.server, self.run_state, self._changed = self._open
            for store in (self.store, self.per_client_states):
                store.drop()
        if self.run_dir and self._saved < self.run_state.round:
            self._checkpoint()

    def _note(self, r: Round, outcome: ClientUpload, flaw: UploadError | None) -> None:
        """Write an upload down in the audit log."""
        assert self._audit is not None
        fingerprint = outcome.fingerprint or fingerprints.fingerprint(outcome.upload, flaw)
        self._audit.add(r.t + 1, r.phase, outcome.sender, *fingerprint, flaw)

    def _count(self, log: RoundLog, flops: Costs) -> None:
        totals = self.run_state.totals
        totals.up += sum(log.up.values())
        totals.down += sum(log.down.values())
        totals.participations += len(log.cohort)
        totals.client_flops += sum(sum(flops.of(self.pool, i)) for i in log.cohort if not self.faults.gone(log.t, i))
        totals.server_flops += 0 if log.empty else flops.server
        self.run_state.before |= log.before
        self.run_state.after |= log.after
        self.run_state.rejected += [r._asdict() for r in log.rejected]
        self.run_state.dropped += [d._asdict() for d in log.dropped]
        self.run_state.spoilt += [{"client": i, "round": log.t + 1} for i in log.spoilt]
        for dropped in log.dropped:
            totals.dropped[dropped.why] = totals.dropped.get(dropped.why, 0) + 1
        totals.empty += log.empty
        for rejection in log.rejected:
            self.run_state.strikes[rejection.client] = self.run_state.strikes.get(rejection.client, 0) + 1
        self.notes += [
            f"Round {log.t + 1}: the work of client {i!r} was lost, as {why}." for i, why in log.lost.items()
        ]
        self._changed |= set(log.accepted)
        self.privacy.count(log.accepted)

    def _stop_if_spent(self) -> None:
        if (
            self.run_state.status == "running"
            and self.run_state.round < self.config.rounds
            and not self.privacy.affordable()
        ):
            self.run_state.status = "exhausted"

    def _is_over(self, log: RoundLog) -> bool:
        """Whether nothing can come of the run any more: nobody who answered had a valid upload, or nobody is left."""
        if log.cohort and len(log.lost) == len(log.cohort) and not log.accepted:
            raise AtollError(f"Round {log.t + 1}: nobody's work came through, as {next(iter(log.lost.values()))}.")
        excluded = self.run_state.excluded(self.config.strikes)
        return len(excluded) == len(self.pool.ids) or bool(log.rejected and not log.accepted)

    def _cohort(self, t: int) -> list[ClientId]:
        return sample_cohort(self.pool.ids, self.config.rate, self.config.seed, t)

    def _evaluated(self, t: int) -> bool:
        return (t + 1) % self.config.eval_every == 0 or t + 1 == self.config.rounds

    def _to_evaluate(self, t: int) -> set[ClientId]:
        """Clients whose model after round ``t`` is the one that the next evaluation reports."""
        to_evaluate, later = self._answering(t), t
        # With a deadline nobody can tell who will be late, so everybody is examined.
        while to_evaluate and not self._evaluated(later) and self.config.deadline is None:
            later += 1
            to_evaluate -= self._answering(later)
        return to_evaluate

    def _answering(self, t: int) -> set[ClientId]:
        return {i for i in self._cohort(t) if not self.faults.gone(t, i)}

    def _evaluate(self, log: RoundLog) -> RoundMetrics:
        run_state, totals = self.run_state, self.run_state.totals
        generic, self._generic_marks = self.evaluator.generic(self.server, log.t, log.accepted)
        line = {
            "round": log.t + 1,
            "personal": self.evaluator.personal(run_state, self.server, self._changed | self._objects.keys()),
            "generic": generic,
            "bytes": {"up": totals.up, "down": totals.down},
            "flops": {"clients": totals.client_flops, "server": totals.server_flops},
            "clock": {name: stamp._asdict() for name, stamp in self.stamps.items()},
            "participants": log.cohort,
            "rejected": run_state.rejected,
        }
        more = {
            "dropped": run_state.dropped,
            "spoilt": run_state.spoilt,
            "excluded": run_state.excluded(self.config.strikes),
        }
        run_state.rejected, run_state.dropped, run_state.spoilt = [], [], []
        if self.privacy.on:
            more["privacy"] = self.privacy.progress()
        return line | {name: entries for name, entries in more.items() if entries}

    def _record(self, line: RoundMetrics) -> None:
        line["seconds"] = self.run_state.totals.seconds
        self.run_state.lines.append(line)
        self.run_state.rows.append(self.evaluator.rows(line["round"], self.run_state, self._generic_marks))
        if self.run_dir:
            self.run_dir.append_metrics(line)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        found = self._checkpoints().load(self.notes.append)
        if found is not None:
            self._check_resumable(found.round, found.progress["federation"])
            self._entries = found.progress["entries"]
        for name, extra in self.extras.items():
            extra.take_over(self._entries.get(name))
        for store in (self.store, self.per_client_states):
            store.clear()  # on disk it may hold states of rounds that no checkpoint knows of
        if found is not None:
            self._take_over(found)

    def _take_over(self, found: Snapshot) -> None:
        self.server, self._saved = found.server, found.round
        self._objects, self._per_client_objects = found.states, found.per_client_states
        for i, name in found.states.items():
            self.store.put(i, self._checkpoints().get_state(name))
        for i, name in found.per_client_states.items():
            self.per_client_states.put(i, self._checkpoints().get_per_client(name))
        for store in (self.store, self.per_client_states):
            store.keep()
        self.run_state = from_json(found.round, found.progress["ledger"], from_parquet(found.rows))
        if self.run_state.status == "diverged":
            return
        self.run_state.status = "running"
        self._stop_if_spent()
        if self.run_state.status == "running":  # more rounds may have been asked for
            self._drop_early_end()

    def _check_resumable(self, done: int, federation: str) -> None:
        assert self.run_dir is not None
        where = str(self.run_dir.path)
        if done > self.config.rounds:
            raise AtollError(f"The run in {where!r} has done {done} rounds already. Give --rounds {done} or more.")
        if federation != self.setup.federation.name:
            raise AtollError(
                f"Cannot resume {where!r}: the data are not what they were when it began. "
                "Bring them back, or start again with --force, which replaces the run."
            )

    def _drop_early_end(self) -> None:
        """What was evaluated only because it used to be the last round; its rejections go to the next line."""
        run_state = self.run_state
        early = [line for line in run_state.lines if not self._evaluated(line["round"] - 1)]
        for name in ("rejected", "dropped", "spoilt"):
            setattr(run_state, name, [r for line in early for r in line.get(name, [])] + getattr(run_state, name))
        run_state.lines = [line for line in run_state.lines if line not in early]
        kept = pa.array([line["round"] for line in run_state.lines], pa.int64())
        run_state.rows = [rows.filter(pc.is_in(rows["round"], kept)) for rows in run_state.rows]

    def _checkpoints(self) -> Checkpoints:
        assert self.run_dir is not None
        return Checkpoints(self.run_dir.path, self.types, self.config.identity())

    def _checkpoint(self) -> None:
        checkpoints, run_state = self._checkpoints(), self.run_state
        for store, objects in ((self.store, self._objects), (self.per_client_states, self._per_client_objects)):
            changed = ((i, store.get(i)) for i in sorted(self._changed))
            objects |= {i: checkpoints.put_state(state) for i, state in changed if state is not None}
        self._changed.clear()
        progress = {"ledger": run_state.to_json(), "federation": self.setup.federation.name, "entries": self._entries}
        rows, states, per_client_states = (
            to_parquet(run_state.table()),
            dict(self._objects),
            dict(self._per_client_objects),
        )
        assert self._audit is not None
        self._audit.sync()  # a checkpoint must not know of more than is on the disk
        checkpoints.save(Snapshot(run_state.round, self.server, states, progress, rows, per_client_states))
        self._saved = run_state.round

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> Result:
        run_state, table = self.run_state, self.run_state.table()
        if self.guard:
            self.guard.close(self.setup.federation.dataset.classes)
        self.notes += incidents(run_state, self.config.strikes)
        if run_state.status == "exhausted":
            self.notes.append(self.privacy.exhausted())
        summary = self._summary()
        if self.run_dir:
            if self._saved < run_state.round:
                self._checkpoint()
            else:
                self._checkpoints().tidy(run_state.round)
            self.run_dir.write_bytes("clients.parquet", to_parquet(table))
            assert self._audit is not None
            summary["audit"] = self._audit.mark()._asdict()  # where the log ends
            self.run_dir.write_json("summary.json", summary)
            self.run_dir.sync()
        return Result(
            self.setup, summary, run_state.lines, table, self.server, self.per_client_states, self.backend, self.notes
        )

    def _summary(self) -> dict[str, Any]:
        poisoned = sorted(self.faults.poisoned)
        made = summarise(self.config, self.run_state, len(self.pool.ids), self._digest(), poisoned)
        return made | {"privacy": self.privacy.record()}

    def _digest(self) -> str:
        """SHA-256 over the server's state and every client's state, and what the server keeps of each."""
        whole = sha256(f"server {digest(self.server)}\n".encode())
        for what, store in (("client", self.store), ("desk", self.per_client_states)):
            for i in store:
                whole.update(f"{what} {i} {state_digest(store.get(i))}\n".encode())
        return whole.hexdigest()

    def _holdings(self) -> dict[str, Any]:
        return self.setup.federation.holdings()
