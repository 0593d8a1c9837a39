"""Simulated time of a run: how long rounds would take between real devices, and which clients would be late."""

from collections.abc import Mapping
from functools import partial

from ..clients.pool import ClientPool
from ..clients.tasks import RoundFaults, RoundLog
from ..core.schema import FieldConstraints
from ..typing import ClientId
from .clock import Clock, Devices, Stamp, Times, Work
from .costs import Costs
from .faults import Faults


class RoundTimer:
    """Simulates how long work takes on every client's device, faults included.

    Args:
        devices: speeds of clients, network and server.
        pool: the clients, whose rows decide how much work they have.
        faults: clients that are slow, absent or Byzantine.
        seed: seed of the run, which decides the speed of each client.
        deadline: simulated seconds that the server waits in a round; None: until all have answered.
        constraints: what the method declares of the fields of uploads, for Byzantine clients that collude.
    """

    def __init__(
        self,
        devices: Devices,
        pool: ClientPool,
        faults: Faults,
        *,
        seed: int,
        deadline: float | None,
        constraints: Mapping[str, FieldConstraints],
    ):
        self._devices = devices
        self._pool = pool
        self._faults = faults
        self._seed = seed
        self._deadline = deadline
        self._constraints = constraints

    def faults(self, t: int, costs: Costs, clock: Clock) -> RoundFaults:
        """Return what goes wrong in round ``t``. An upload is late if it arrives after the deadline by ``clock``."""

        def late(i: ClientId, up: int, down: int) -> bool:
            if self._deadline is None:
                return False
            return clock.arrival(i, self.of(t, i, costs, up, down)) > clock.server + self._deadline

        return RoundFaults(
            partial(self._faults.absence, t), late, partial(self._faults.tamper, constraints=self._constraints)
        )

    def stamps(self, log: RoundLog, costs: Costs, clocks: dict[str, Clock]) -> dict[str, Stamp]:
        """Advance the clocks by a round, and return when the server and the last client were done by each."""
        missed = {dropped.client for dropped in log.dropped}
        present = [i for i in log.cohort if i not in missed]
        times = {i: self.of(log.t, i, costs, log.up.get(i, 0), log.down[i]) for i in present}
        aggregation = self._devices.aggregation(0 if log.is_empty else costs.server)
        limit = self._deadline if missed else None
        return {name: clock.round(times, aggregation, limit) for name, clock in clocks.items()}

    def of(self, t: int, i: ClientId, costs: Costs, up: int, down: int) -> Times:
        """Return how long one client takes in round ``t``."""
        work = Work(*costs.of(self._pool, i), up, down)
        return self._faults.delayed(self._devices.times(work, i, self._seed), t, i)
