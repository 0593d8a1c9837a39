"""Decide when a run ends: after its rounds, when it has diverged, or when its privacy budget is spent."""

from collections.abc import Iterator

from ..clients.tasks import RoundLog
from ..config import Config
from ..errors import AtollError
from ..privacy.policy import Privacy
from .run_state import RunState


class Ending:
    """Sets the status of a run that ends.

    Args:
        config: number of rounds, and of rejected uploads after which a client is excluded.
        privacy: the privacy budget.
        clients: number of clients.
    """

    def __init__(self, config: Config, privacy: Privacy, clients: int):
        self._config = config
        self._privacy = privacy
        self._clients = clients

    def is_running(self, run_state: RunState) -> bool:
        """Return True if another round follows."""
        return run_state.status == "running" and run_state.round < self._config.rounds

    def reopen(self, run_state: RunState) -> None:
        """Let a restored run go on, unless it has diverged or cannot afford another round."""
        if run_state.status != "diverged":
            run_state.status = "running"
            self.stop_if_spent(run_state)

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

    def _has_diverged(self, run_state: RunState, log: RoundLog) -> bool:
        """Return True if the run cannot recover: all received uploads were invalid, or all clients are excluded."""
        if log.cohort and len(log.lost) == len(log.cohort) and not log.accepted:
            raise AtollError(f"Round {log.t + 1}: the work of all clients was lost: {next(iter(log.lost.values()))}.")
        excluded = run_state.excluded(self._config.strikes)
        return len(excluded) == self._clients or bool(log.rejected and not log.accepted)
