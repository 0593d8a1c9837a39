"""Run an experiment: rounds, evaluation, metrics, checkpoints, summary."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..backends.base import Backend
from ..clients.state_store import RunStores
from ..clients.tasks import RoundLog
from ..errors import AtollError
from ..privacy.policy import Privacy
from ..simulation.clock import Stamp
from ..simulation.costs import Costs, count_operations, measure_seconds
from ..simulation.timing import RoundTimer
from ..storage.metrics import GenericScores, OptionalMetrics, PersonalScores, RoundMetrics
from ..typing import ClientId
from .cohort import Cohorts
from .environment import Environment
from .evaluator import Evaluator
from .recorder import Recorder, make_metrics_line
from .result import Result
from .resume import Checkpointing, Progress, drop_early_end
from .round import RoundPolicy, run_round
from .setup import Setup
from .summary import describe_incidents, run_digest, summarise

Watch = Callable[[int, RoundMetrics | None], None]  # called after every round, with metrics if it was evaluated


class Evaluation(NamedTuple):
    """Scores of the models after a round."""

    personal: PersonalScores
    generic: GenericScores | None
    accuracies: list[float] | None  # of the generic model on each client's test rows


@dataclass(eq=False)
class Experiment:
    """A run in progress: the loop over rounds. Built by ``build_experiment``.

    Args:
        setup: configuration, method, data and clients.
        environment: where the clients run.
        stores: states of the clients.
        backend: runs the clients.
        privacy: budget and record of what leaves clients.
        cohorts: which clients take part in each round.
        timer: simulated times of clients.
        policy: how the server treats uploads; faults and excluded clients are added for each round.
        evaluator: scores models.
        recorder: writes metrics, audit log and summary.
        checkpointing: saves whole rounds.
        notes: sentences for the user, in order of time.
    """

    setup: Setup
    environment: Environment
    stores: RunStores
    backend: Backend
    privacy: Privacy
    cohorts: Cohorts
    timer: RoundTimer
    policy: RoundPolicy
    evaluator: Evaluator
    recorder: Recorder
    checkpointing: Checkpointing
    notes: list[str]
    progress: Progress = field(init=False)
    _lasting: set[ClientId] = field(
        init=False, default_factory=set
    )  # clients with scores that depend on their states alone

    def __post_init__(self) -> None:
        self.progress = Progress(self.evaluator.first_server())

    def run(self, watch: Watch) -> Result:
        """Run the experiment to the end, from the latest checkpoint if there is one.

        An interrupted run saves the last whole round and raises KeyboardInterrupt.

        Args:
            watch: called after every round, with its number and its metrics (None if it was not evaluated).
        """
        try:
            self.resume()
            self.recorder.open(self.progress.run_state.lines)
            self._stop_if_spent()
            flops, work = self._costs()
            while self._is_running():
                line = self._run_round(flops, work)
                watch(self.progress.run_state.round, line)
            if self.progress.run_state.status == "running":
                self.progress.run_state.status = "finished"
            if not self.progress.run_state.lines:
                raise AtollError(self.privacy.exhausted())
            return self._finish()
        except KeyboardInterrupt:
            self.progress = self.checkpointing.roll_back(self.progress)
            raise
        finally:
            self.backend.close()

    def resume(self) -> None:
        """Continue from the latest checkpoint, if there is one. The run may now have more rounds than before."""
        found = self.checkpointing.load(self.setup.config.rounds, self.notes.append)
        if found is None:
            return
        self.progress, run_state = found, found.run_state
        if run_state.status != "diverged":
            run_state.status = "running"
            self._stop_if_spent()
        if run_state.status == "running":
            drop_early_end(run_state, self.cohorts.is_evaluated)
        self.environment.resume(run_state.lines)

    def _costs(self) -> tuple[Costs, Costs]:
        """Return the operations of a round, and its work in the unit of the simulated clock."""
        method, pool, seed, cohort = self.setup.method, self.setup.pool, self.setup.config.seed, self.cohorts.sample(0)
        flops = count_operations(method, pool, seed, len(cohort))
        measured = self.setup.devices.compute == "measured"
        return flops, measure_seconds(method, pool, seed, len(cohort)) if measured else flops

    def _is_running(self) -> bool:
        run_state = self.progress.run_state
        return run_state.status == "running" and run_state.round < self.setup.config.rounds

    def _run_round(self, flops: Costs, work: Costs) -> RoundMetrics | None:
        progress, run_state, started = self.progress, self.progress.run_state, time.perf_counter()
        self.checkpointing.open_round(progress)
        self.privacy.reserve(run_state.round)
        log = self._exchange(run_state.round, work)
        self._count(log, flops)
        stamps = self.timer.stamps(log, work, run_state.clocks)
        if self._has_diverged(log):
            run_state.status = "diverged"
        elif log.t + 1 < self.setup.config.rounds:
            self._stop_if_spent()
        evaluation = None
        if self.cohorts.is_evaluated(log.t) or run_state.status != "running":
            evaluation = self._evaluate(log)
        run_state.totals.seconds += time.perf_counter() - started
        line = None if evaluation is None else self._record(log, evaluation, stamps)
        self.checkpointing.close_round(progress)
        return line

    def _exchange(self, t: int, work: Costs) -> RoundLog:
        """Run the exchanges of round ``t`` between the server and the cohort."""
        config, run_state = self.setup.config, self.progress.run_state
        clock = run_state.clocks["wait_free" if config.wait_free else "waiting"]
        self.progress.server, log = run_round(
            self.setup.method,
            self.setup.pool.task(),
            self.backend,
            self.progress.server,
            t=t,
            seed=config.seed,
            cohort=self.cohorts.sample(t),
            evaluate=self.cohorts.to_evaluate(t),
            per_client_states=self.stores.server_side,
            policy=replace(
                self.policy,
                excluded=run_state.excluded(config.strikes),
                faults=self.timer.faults(t, work, clock),
            ),
            known={i: run_state.after[i] for i in self._lasting},
        )
        self._lasting = (self._lasting - set(log.accepted)) | log.lasting
        return log

    def _evaluate(self, log: RoundLog) -> Evaluation:
        run_state, server = self.progress.run_state, self.progress.server
        generic, accuracies = self.evaluator.evaluate_generic(server, log.t, log.accepted)
        with_state = self.progress.changed | self.checkpointing.saved_clients
        return Evaluation(self.evaluator.evaluate_personal(run_state, server, with_state), generic, accuracies)

    def _record(self, log: RoundLog, evaluation: Evaluation, stamps: Mapping[str, Stamp]) -> RoundMetrics:
        run_state, optional = self.progress.run_state, OptionalMetrics()
        if excluded := run_state.excluded(self.setup.config.strikes):
            optional["excluded"] = excluded
        if self.privacy.on and (spent := self.privacy.progress()):
            optional["privacy"] = spent
        line = make_metrics_line(
            log,
            run_state,
            personal=evaluation.personal,
            generic=evaluation.generic,
            stamps=stamps,
            optional={**optional, **self.environment.metrics()},
        )
        run_state.start_line()
        run_state.lines.append(line)
        run_state.rows.append(self.evaluator.make_table(line["round"], run_state, evaluation.accuracies))
        self.recorder.record_metrics(line)
        return line

    def _count(self, log: RoundLog, flops: Costs) -> None:
        pool, faults = self.setup.pool, self.cohorts.faults
        worked = [i for i in log.cohort if not faults.absence(log.t, i)]
        client_flops = sum(sum(flops.of(pool, i)) for i in worked)
        self.progress.run_state.add(log, client_flops, 0 if log.is_empty else flops.server)
        self.progress.changed |= set(log.accepted)
        self.privacy.count(log.accepted)
        self.notes += [f"Round {log.t + 1}: the work of client {i!r} was lost: {why}." for i, why in log.lost.items()]

    def _stop_if_spent(self) -> None:
        if self._is_running() and not self.privacy.can_afford():
            self.progress.run_state.status = "exhausted"

    def _has_diverged(self, log: RoundLog) -> bool:
        """Return True if the run cannot recover: all received uploads were invalid, or all clients are excluded."""
        if log.cohort and len(log.lost) == len(log.cohort) and not log.accepted:
            raise AtollError(f"Round {log.t + 1}: the work of all clients was lost: {next(iter(log.lost.values()))}.")
        excluded = self.progress.run_state.excluded(self.setup.config.strikes)
        return len(excluded) == len(self.setup.pool.ids) or bool(log.rejected and not log.accepted)

    def _finish(self) -> Result:
        run_state, config = self.progress.run_state, self.setup.config
        if self.policy.guard:
            self.policy.guard.close(self.setup.federation.dataset.classes)
        self.notes += describe_incidents(run_state, config.strikes)
        if run_state.status == "exhausted":
            self.notes.append(self.privacy.exhausted())
        summary, table = self._summary(), run_state.table()
        self.checkpointing.finish(self.progress)
        self.recorder.finish(table, summary)
        return Result(
            setup=self.setup,
            summary=summary,
            history=run_state.lines,
            table=table,
            server=self.progress.server,
            per_client_states=self.stores.server_side,
            backend=self.backend,
            notes=self.notes,
        )

    def _summary(self) -> dict[str, Any]:
        run_state = self.progress.run_state
        made = summarise(
            self.setup.config,
            run_state,
            self.setup.pool.problem,
            clients=len(self.setup.pool.ids),
            digest=run_digest(self.progress.server, self.stores),
            poisoned=sorted(self.cohorts.faults.poisoned),
        )
        further = self.environment.summary(run_state.lines)
        return made | {"privacy": self.privacy.record()} | further | self.recorder.summary()
