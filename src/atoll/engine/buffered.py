"""Run rounds in which the server aggregates as soon as K uploads have arrived (FedBuff, and FedAsync with K = 1)."""

from dataclasses import dataclass

from ..clients.tasks import RoundLog, Start
from ..typing import ClientId
from .resume import Progress
from .round_runner import RoundRunner


@dataclass(eq=False)
class BufferedRunner(RoundRunner):
    """Runs clients at the same time on the simulated clock, and a round for every K uploads.

    A round is one aggregation. At its start, clients are sampled for the places that are free in the cohort and get the
    server's state of now; then the K clients whose uploads arrive first take part in the round, whichever version they
    started from. A client is trained when its upload arrives, so that clients at work need no memory but the version
    that they started from. With K equal to the cohort, every round is a synchronous one.

    Args:
        buffer: K, uploads in an aggregation.
    """

    buffer: int = 1

    def run(self, progress: Progress) -> RoundLog:
        """Run the next aggregation, and put the server's new state into ``progress``."""
        run_state = progress.run_state
        progress.versions[run_state.round] = progress.server
        dropped = self._start_clients(progress)
        arriving = self._first_to_arrive(progress)
        starts = {i: run_state.working.pop(i) for i in arriving}
        cohort = [i for i in self.cohorts.clients if i in starts or i in dropped]
        log = self._run_round(progress, cohort, cohort, starts)
        in_use = {start.version for start in run_state.working.values()}
        progress.versions = {version: state for version, state in progress.versions.items() if version in in_use}
        return log

    def _start_clients(self, progress: Progress) -> list[ClientId]:
        """Start clients on the free places of the cohort, and return those of them that will never answer."""
        run_state = progress.run_state
        t, excluded = run_state.round, set(run_state.excluded(self.setup.config.strikes))
        sampled = [i for i in self.cohorts.sample(t, run_state.working) if i not in excluded]
        dropped = [i for i in sampled if self.cohorts.faults.absence(t, i)]
        start = Start(t, {name: clock.server for name, clock in run_state.clocks.items()})
        run_state.working |= {i: start for i in sampled if i not in dropped}
        return dropped

    def _first_to_arrive(self, progress: Progress) -> list[ClientId]:
        """Return the K clients whose uploads arrive first; of several at the same time, those first in the run."""
        run_state, name = progress.run_state, self._clock
        clock, work = run_state.clocks[name], self.accounting.next_work(run_state)
        at_work = [i for i in self.cohorts.clients if i in run_state.working]
        arrivals = {i: self.timer.arrival(i, run_state.working[i], work, name, clock) for i in at_work}
        return sorted(at_work, key=lambda i: arrivals[i])[: self.buffer]  # sorting keeps the order of equal times
