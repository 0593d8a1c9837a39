"""Run the rounds of an experiment, each with its cohort, its faults and the scores known before it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ..backends.base import Backend
from ..clients.state_store import Store
from ..clients.tasks import RoundLog, Start
from ..core.payloads import Payload
from ..simulation.timing import RoundTimer
from ..typing import ClientId
from .accounting import Accounting
from .cohort import Cohorts
from .resume import Progress
from .round import RoundPolicy, run_round
from .setup import Setup


@dataclass(eq=False)
class RoundRunner:
    """Runs rounds in which the server waits for the whole cohort.

    Args:
        setup: configuration, method and clients.
        backend: runs the clients.
        per_client_states: the server's states for its clients.
        cohorts: which clients take part in each round.
        policy: how the server treats uploads; faults and excluded clients are added for each round.
        timer: simulated times of clients.
        accounting: the work of a round.
    """

    setup: Setup
    backend: Backend
    per_client_states: Store
    cohorts: Cohorts
    policy: RoundPolicy
    timer: RoundTimer
    accounting: Accounting
    _lasting: set[ClientId] = field(init=False, default_factory=set)  # with scores that depend on their states alone

    def first_server(self, server: Payload) -> Any:
        """Return the state of the run before the first round, given the method's first server state."""
        return server

    def run(self, progress: Progress) -> RoundLog:
        """Run the next round between the server and its cohort, and put the server's new state into ``progress``."""
        t = progress.run_state.round
        evaluate = self.cohorts.to_evaluate(t)  # draws the cohorts up to the next evaluation
        return self._run_round(progress, self.cohorts.sample(t), evaluate)

    def _run_round(
        self,
        progress: Progress,
        cohort: Sequence[ClientId],
        evaluate: Collection[ClientId],
        starts: Mapping[ClientId, Start] = MappingProxyType({}),
    ) -> RoundLog:
        t = progress.run_state.round
        progress.server, log = run_round(
            self.setup.method,
            self.setup.pool.task(),
            self.backend,
            progress.server,
            t=t,
            seed=self.setup.config.seed,
            cohort=cohort,
            evaluate=evaluate,
            per_client_states=self.per_client_states,
            policy=self._policy(progress, starts),
            known={i: progress.run_state.after[i] for i in cohort if i in self._lasting},
            starts=starts,
            versions=progress.versions,
            budgets=self._budgets(progress, cohort, starts),
        )
        self._lasting -= set(log.accepted)
        self._lasting |= log.lasting
        return log

    @property
    def _clock(self) -> str:
        """The clock that the run follows."""
        return "wait_free" if self.setup.config.wait_free else "waiting"

    def _budgets(
        self, progress: Progress, cohort: Sequence[ClientId], starts: Mapping[ClientId, Start]
    ) -> dict[ClientId, int]:
        """Return the batches that clients train on after their uploads under --until-download."""
        if not self.setup.config.until_download:
            return {}
        run_state = progress.run_state
        t, clocks = run_state.round, run_state.clocks
        now = Start(t, {name: clock.server for name, clock in clocks.items()})
        excluded = set(run_state.excluded(self.setup.config.strikes))
        working = {i: starts.get(i, now) for i in cohort if i not in excluded}
        answering = {i: at for i, at in working.items() if not self.cohorts.faults.absence(at.version, i)}
        return self.timer.budgets(answering, self.accounting.next_work(run_state), self._clock, clocks[self._clock])

    def _policy(self, progress: Progress, starts: Mapping[ClientId, Start]) -> RoundPolicy:
        config, run_state = self.setup.config, progress.run_state
        return replace(
            self.policy,
            excluded=run_state.excluded(config.strikes),
            faults=self.timer.faults(
                run_state.round, self.accounting.next_work(run_state), run_state.clocks[self._clock], starts
            ),
        )
