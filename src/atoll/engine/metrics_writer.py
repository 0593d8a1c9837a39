"""Evaluate a round, and write its line of metrics and its rows of the table of clients."""

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from ..clients.evaluation import choose_round
from ..clients.model_store import ModelStore
from ..clients.tasks import RoundLog
from ..privacy.policy import Privacy
from ..simulation.clock import Stamp
from ..storage.metrics import GenericScores, OptionalMetrics, PersonalScores, RoundMetrics
from .decentralised import evaluate_generic
from .environment import Environment
from .evaluator import Evaluator
from .generic_model import KeptServer, choose_generic_round
from .recorder import Recorder, make_metrics_line
from .resume import Progress
from .setup import Setup


class Evaluation(NamedTuple):
    """Scores of the models after a round."""

    personal: PersonalScores
    generic: GenericScores | None
    accuracies: list[float] | None  # of the generic model on each client's test rows


class MetricsWriter:
    """Evaluates rounds and records their metrics.

    Args:
        evaluator: scores models.
        environment: adds entries of its own to lines.
        privacy: adds the budget spent to lines.
        recorder: writes lines.
        setup: configuration, method and clients.
        models: keeps the models that were evaluated.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        environment: Environment,
        privacy: Privacy,
        recorder: Recorder,
        setup: Setup,
        models: ModelStore,
    ):
        self._evaluator = evaluator
        self._environment = environment
        self._privacy = privacy
        self._recorder = recorder
        self._setup = setup
        self._models = models

    def evaluate(self, log: RoundLog, progress: Progress) -> Evaluation:
        """Evaluate the personal models and the generic model after a round."""
        method, pool = self._setup.method, self._setup.pool
        generic, accuracies = evaluate_generic(self._evaluator, method, pool, progress.server, log)
        personal = self._evaluator.evaluate_personal(progress.run_state, progress.server)
        return Evaluation(personal, generic, accuracies)

    def write(
        self, log: RoundLog, progress: Progress, evaluation: Evaluation, stamps: Mapping[str, Stamp]
    ) -> RoundMetrics:
        """Record the line of metrics of an evaluated round, and return it.

        Args:
            log: record of the round.
            progress: totals so far; the line and the table of the round are added.
            evaluation: scores of the models.
            stamps: simulated times at which the models are ready.
        """
        run_state, optional = progress.run_state, OptionalMetrics()
        if excluded := run_state.excluded(self._setup.config.strikes):
            optional["excluded"] = excluded
        if self._privacy.on and (spent := self._privacy.progress()):
            optional["privacy"] = spent
        if (loss := log.training_loss) is not None:
            optional["training"] = {"loss": loss}
        if log.starts and log.accepted:
            optional["staleness"] = fmean(log.t - log.version(i) for i in log.accepted)
        line = make_metrics_line(
            log,
            run_state,
            personal=evaluation.personal,
            generic=evaluation.generic,
            stamps=stamps,
            optional={**optional, **self._environment.metrics()},
        )
        run_state.start_line()
        run_state.lines.append(line)
        run_state.rows.append(self._evaluator.make_table(line["round"], run_state, evaluation.accuracies))
        self._recorder.record_metrics(line)
        history = [(each["round"], each["personal"]["post"]) for each in run_state.lines]
        chosen = choose_round(history, self._setup.pool.problem.criterion)
        is_regular = line["round"] % self._setup.config.eval_every == 0
        self._models.end_evaluation(line["round"], chosen, is_regular)
        if is_regular and self._models.on:
            self._keep_server(progress, line)
        return line

    def _keep_server(self, progress: Progress, line: RoundMetrics) -> None:
        """Keep the server's state if its model is the best so far by validation."""
        chosen = choose_generic_round(progress.run_state.lines, self._setup.pool.problem.criterion)
        if line["generic"] and line["generic"]["source"] == "server" and chosen == line["round"]:
            progress.generic = KeptServer(line["round"], progress.server)
