"""Run an experiment: rounds, evaluation, metrics, checkpoints, summary."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..clients.run_stores import RunStores
from ..privacy.policy import Privacy
from ..storage.metrics import RoundMetrics
from ..utils.signals import find_request
from .accounting import Accounting
from .ending import Ending
from .environment import Environment
from .evaluator import Evaluator
from .metrics_writer import MetricsWriter
from .recorder import Recorder
from .result import Result
from .resume import Checkpointing, Progress
from .round_runner import RoundRunner
from .setup import Setup
from .summary import describe_incidents, run_digest, summarise

Watch = Callable[[int, RoundMetrics | None], None]  # called after every round, with metrics if it was evaluated
EvaluationLog = Callable[[RoundMetrics, pa.Table], None]  # called with the metrics and the scores of all clients


@dataclass(eq=False)
class Experiment:
    """A run in progress: the loop over rounds. Built by ``build_experiment``.

    Args:
        setup: configuration, method, data and clients.
        environment: where the clients run.
        stores: states of the clients.
        privacy: budget and record of what leaves clients.
        rounds: runs the exchanges of a round.
        accounting: counts bytes, operations and simulated time.
        ending: decides when the run ends.
        evaluator: scores models.
        metrics: evaluates rounds and writes their metrics.
        recorder: writes metrics, audit log and summary.
        checkpointing: saves whole rounds.
        notes: sentences for the user, in order of time.
    """

    setup: Setup
    environment: Environment
    stores: RunStores
    privacy: Privacy
    rounds: RoundRunner
    accounting: Accounting
    ending: Ending
    evaluator: Evaluator
    metrics: MetricsWriter
    recorder: Recorder
    checkpointing: Checkpointing
    notes: list[str]
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.rounds.first_server(self.evaluator.first_server()))

    def run(self, watch: Watch, log: EvaluationLog | None = None) -> Result:
        """Run the experiment to the end, from the latest checkpoint if there is one.

        An interrupted run saves the last whole round and raises KeyboardInterrupt.

        Args:
            watch: called after every round, with its number and its metrics (None if it was not evaluated).
            log: called after every evaluation, with its metrics and the scores of all clients.
        """
        try:
            self.resume()
            self.notes += self.recorder.open(self.progress.run_state.lines, self.progress.run_state.round)
            self.ending.stop_if_spent(self.progress.run_state)
            self.accounting.prepare()
            while self.ending.is_running(self.progress.run_state):
                line = self._run_round()
                if log is not None and line is not None:
                    log(line, self.progress.run_state.rows[-1])
                watch(self.progress.run_state.round, line)
            self.ending.close(self.progress.run_state)
            return self._finish()
        except KeyboardInterrupt:
            self.progress = self.checkpointing.roll_back(self.progress)
            raise
        except Exception as error:
            # A library may answer an interruption with an error of its own.
            if (request := find_request()) is None:
                raise
            self.progress = self.checkpointing.roll_back(self.progress)
            raise request from error
        finally:
            self.rounds.backend.close()

    def resume(self) -> None:
        """Continue from the latest checkpoint, if there is one. The run may now have more rounds than before."""
        found = self.checkpointing.load(self.setup.config.rounds, self.notes.append)
        if found is None:
            return
        self.progress = found
        self.ending.reopen(found.run_state)
        is_longer = found.run_state.status == "running"
        if is_longer and found.run_state.drop_early_end(self.rounds.cohorts.is_evaluated):
            self.stores.models.drop_irregular_evaluation()
        self.environment.resume(found.run_state.lines)

    def _run_round(self) -> RoundMetrics | None:
        progress, run_state, started = self.progress, self.progress.run_state, time.perf_counter()
        self.checkpointing.open_round(progress)
        self.privacy.reserve(run_state.round)
        log = self.rounds.run(progress)
        stamps = self.accounting.count(log, progress)
        self.notes += [f"Round {log.t + 1}: the work of client {i!r} was lost: {why}." for i, why in log.lost.items()]
        self.ending.after_round(run_state, log)
        is_evaluated = self.rounds.cohorts.is_evaluated(log.t) or run_state.status != "running"
        evaluation = self.metrics.evaluate(log, progress) if is_evaluated else None
        run_state.totals.seconds += time.perf_counter() - started
        line = None if evaluation is None else self.metrics.write(log, progress, evaluation, stamps)
        self.ending.after_evaluation(run_state, log.t + 1)
        self.checkpointing.close_round(progress)
        return line

    def _finish(self) -> Result:
        run_state, policy = self.progress.run_state, self.rounds.policy
        if policy.guard:
            policy.guard.close(self.setup.federation.dataset.classes)
        self.notes += describe_incidents(run_state, self.setup.config.strikes)
        self.notes += self.ending.describe(run_state)
        summary, table = self._summary(), run_state.table()
        self.checkpointing.finish(self.progress)
        self.recorder.finish(table, summary)
        return Result(
            setup=self.setup,
            summary=summary,
            history=run_state.lines,
            table=table,
            server=self.progress.server,
            stores=self.stores,
            backend=self.rounds.backend,
            notes=self.notes,
            kept_server=self.progress.generic,
        )

    def _summary(self) -> dict[str, Any]:
        run_state = self.progress.run_state
        made = summarise(
            self.setup.config,
            run_state,
            self.setup.pool.problem,
            clients=len(self.setup.pool.ids),
            digest=run_digest(self.progress.server, self.stores),
            poisoned=sorted(self.rounds.cohorts.faults.poisoned),
        )
        further = self.environment.summary(run_state.lines)
        return made | {"privacy": self.privacy.record()} | further | self.recorder.summary()
