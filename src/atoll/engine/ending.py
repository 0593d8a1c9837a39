"""Decide when a run ends: after its rounds, by validation scores, by divergence, or with its privacy budget."""

from collections.abc import Iterator, Sequence
from math import nan

from ..clients.tasks import RoundLog
from ..config import Config
from ..core.criterion import ACCURACY, Criterion
from ..errors import AtollError
from ..privacy.policy import Privacy
from ..storage.metrics import RoundMetrics
from .cohort import Cohorts
from .run_state import RunState


class Ending:
    """Sets the status of a run that ends.

    Args:
        config: number of rounds, ``--patience``, ``--until``, and ``--strikes``.
        privacy: the privacy budget.
        cohorts: the clients, and which rounds are evaluated.
        criterion: the score on validation rows that ``--patience`` and ``--until`` follow.
    """

    def __init__(self, config: Config, privacy: Privacy, cohorts: Cohorts, criterion: Criterion = ACCURACY):
        self._config = config
        self._criterion = criterion
        self._privacy = privacy
        self._cohorts = cohorts

    def is_running(self, run_state: RunState) -> bool:
        """Return True if another round follows."""
        return run_state.status == "running" and run_state.round < self._config.rounds

    def reopen(self, run_state: RunState) -> None:
        """Let a restored run go on, unless it has diverged or must end where it is."""
        if run_state.status != "diverged":
            run_state.status = "running"
            self.stop_if_spent(run_state)
            self.after_evaluation(run_state, run_state.round)

    def stop_if_spent(self, run_state: RunState) -> None:
        """End a run whose privacy budget does not allow another round."""
        if self.is_running(run_state) and not self._privacy.can_afford():
            run_state.status = "exhausted"

    def after_round(self, run_state: RunState, log: RoundLog) -> None:
        """End a run that has diverged in a round, or has spent its budget in one that is not the last."""
        if self._has_diverged(run_state, log):
            run_state.status = "diverged"
        elif log.t + 1 < self._config.rounds:
            self.stop_if_spent(run_state)

    def after_evaluation(self, run_state: RunState, done: int) -> None:
        """End a run by its validation scores, unless ``done`` rounds are all it was to have."""
        if run_state.status == "running" and done < self._config.rounds and self._why_stopped(run_state.lines):
            run_state.status = "stopped"

    def close(self, run_state: RunState) -> None:
        """Set the status of a run that did all its rounds.

        Raises:
            AtollError: the budget did not allow a single evaluated round.
        """
        if run_state.status == "running":
            run_state.status = "finished"
        if not run_state.lines:
            raise AtollError(self._privacy.exhausted())

    def describe(self, run_state: RunState) -> Iterator[str]:
        """Yield a sentence on the reason for an early end."""
        if run_state.status == "exhausted":
            yield self._privacy.exhausted()
        if run_state.status == "stopped":
            yield f"The run was stopped after round {run_state.round}: {self._why_stopped(run_state.lines)}."

    def _why_stopped(self, lines: Sequence[RoundMetrics]) -> str | None:
        """Return why validation scores end a run, None if they do not.

        Lines of rounds that were evaluated only because an earlier run ended there do not count: a run without the
        interruption would not have them.
        """
        if self._config.until is None and self._config.patience is None:
            return None  # Validation scores may be missing: sites keep scores of few rows to themselves.
        scored = [(line["round"], validation_score(line)) for line in lines]
        scored = [(done, score) for done, score in scored if self._cohorts.is_evaluated(done - 1)]
        if not scored:
            return None
        best = self._criterion.best(scored, lambda at: at[1])  # the first of equal scores
        until, patience = self._config.until, self._config.patience
        if until is not None and self._criterion.reaches(best[1], until):
            return f"the validation score reached {best[1]:.4g} in round {best[0]} (--until {until:g})"
        since = len(scored) - 1 - scored.index(best)
        if patience is not None and since >= patience:
            return (
                f"no better validation score than {best[1]:.4g} of round {best[0]} in {since} evaluations "
                f"(--patience {patience})"
            )
        return None

    def _has_diverged(self, run_state: RunState, log: RoundLog) -> bool:
        """Return True if the run cannot recover: all received uploads were invalid, or all clients are excluded."""
        if log.cohort and len(log.lost) == len(log.cohort) and not log.accepted:
            raise AtollError(f"Round {log.t + 1}: the work of all clients was lost: {next(iter(log.lost.values()))}.")
        excluded = run_state.excluded(self._config.strikes)
        return len(excluded) == len(self._cohorts.clients) or bool(log.rejected and not log.accepted)


def validation_score(line: RoundMetrics) -> float:
    """Return the score by which a run is stopped: that of the personal models on validation rows."""
    return line["personal"]["post"].get("val", nan)  # absent if no client has a score
