"""Count what the rounds of a run cost: bytes, operations, simulated seconds, and uploads under a privacy budget."""

from functools import cached_property
from statistics import fmean

from ..clients.tasks import RoundLog
from ..privacy.policy import Privacy
from ..simulation.clock import Stamp
from ..simulation.costs import Costs, count_batches, count_operations, measure_seconds
from ..simulation.timing import RoundTimer
from ..typing import ClientId
from .cohort import Cohorts
from .resume import Progress
from .run_state import RunState
from .setup import Setup


class Accounting:
    """Adds the costs of rounds to the totals of a run.

    Args:
        setup: method, clients and devices.
        cohorts: which clients take part in each round.
        timer: simulated times of clients.
        privacy: counts the uploads that were released.
    """

    def __init__(self, setup: Setup, cohorts: Cohorts, timer: RoundTimer, privacy: Privacy):
        neighbours = setup.neighbours
        self._servers = 1 if neighbours is None else len(neighbours)
        # Replies to one server: of the cohort or, without a server, of a client's neighbours and its own.
        self._replies = (
            len(cohorts.sample(0)) if neighbours is None else 1 + round(fmean(map(len, neighbours.values())))
        )
        self._setup = setup
        self._cohorts = cohorts
        self._timer = timer
        self._privacy = privacy

    def prepare(self) -> None:
        """Measure the costs of a round in dry runs, before the first round."""
        self.work  # noqa: B018  # measured when first read

    @cached_property
    def operations(self) -> Costs:
        """Operations of a round, counted in a dry run."""
        method, pool, config = self._setup.method, self._setup.pool, self._setup.config
        costs = count_operations(method, pool, config.seed, self._replies)
        return costs._replace(bounded=count_batches(method, pool, config.seed)) if config.until_download else costs

    @cached_property
    def work(self) -> Costs:
        """Work of a round in the unit of the simulated clock: operations, or seconds measured on this machine."""
        if self._setup.devices.compute != "measured":
            return self.operations
        return measure_seconds(self._setup.method, self._setup.pool, self._setup.config.seed, self._replies)

    def next_work(self, run_state: RunState) -> Costs:
        """Return the work of a round in the unit of the simulated clock, by the participations of clients so far."""
        return self.work._replace(done=run_state.participations)

    def count(self, log: RoundLog, progress: Progress) -> dict[str, Stamp]:
        """Add a round to the totals, advance the clocks, and return the times at which its models are ready."""
        run_state = progress.run_state
        costs, work = self.operations, self.next_work(run_state)
        spent = self._spent(costs._replace(done=run_state.participations), log)
        worked = [i for i in log.cohort if not self._cohorts.faults.absence(log.version(i), i)]
        run_state.add(
            log, sum(round(sum(spent[i])) for i in worked), 0 if log.is_empty else self._servers * costs.server
        )
        progress.changed |= set(log.accepted)
        self._privacy.count(log.accepted)
        times = self._timer.times(log, spent if self.work is costs else self._spent(work, log))
        run_state.totals.local_seconds += sum(spent.local for spent in times.values())
        stamps = self._timer.stamps(log, times, work.server, run_state.clocks)
        run_state.count_participations(log.accepted)
        return stamps

    def _spent(self, costs: Costs, log: RoundLog) -> dict[ClientId, tuple[float, float]]:
        """Return the costs of the clients of a round, before and after their uploads."""
        return {i: costs.of(self._setup.pool, i, log.budgets.get(i)) for i in log.cohort}
