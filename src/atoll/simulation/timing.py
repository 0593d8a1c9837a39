"""The simulated time of a run: how long its rounds would take between real devices, and who would be late."""

from functools import partial

from ..clients.tasks import RoundFaults, RoundLog
from ..core.schema import constraints_of
from ..engine.setup import Setup
from ..typing import ClientId
from .clock import Clock, Stamp, Times, Work
from .costs import Costs
from .faults import Faults


class RoundTimer:
    """Knows what work takes on every client's device, faults included."""

    def __init__(self, setup: Setup, faults: Faults):
        self._devices, self._faults, self._pool = setup.devices, faults, setup.pool
        self._seed, self._deadline = setup.config.seed, setup.config.deadline
        self._constraints = constraints_of(setup.method)

    def faults(self, t: int, costs: Costs, clock: Clock) -> RoundFaults:
        """What goes wrong in round ``t``; late is what comes after the deadline by ``clock``."""

        def late(i: ClientId, up: int, down: int) -> bool:
            if self._deadline is None:
                return False
            return clock.arrival(i, self.of(t, i, costs, up, down)) > clock.server + self._deadline

        return RoundFaults(
            partial(self._faults.gone, t), late, partial(self._faults.tampered, constraints=self._constraints)
        )

    def stamps(self, log: RoundLog, costs: Costs, clocks: dict[str, Clock]) -> dict[str, Stamp]:
        """Let the clocks run through a round."""
        missed = {dropped.client for dropped in log.dropped}
        present = [i for i in log.cohort if i not in missed]
        times = {i: self.of(log.t, i, costs, log.up.get(i, 0), log.down[i]) for i in present}
        aggregation = self._devices.aggregation(0 if log.empty else costs.server)
        limit = self._deadline if missed else None
        return {name: clock.round(times, aggregation, limit) for name, clock in clocks.items()}

    def of(self, t: int, i: ClientId, costs: Costs, up: int, down: int) -> Times:
        """How long one client takes in round ``t``."""
        work = Work(*costs.of(self._pool, i), up, down)
        return self._faults.delayed(self._devices.times(work, i, self._seed), t, i)
