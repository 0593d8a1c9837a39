"""Time the rounds of a run on simulated devices, and determine the clients that are late."""

from collections.abc import Mapping
from functools import partial
from math import floor
from types import MappingProxyType

from ..clients.pool import ClientPool
from ..clients.tasks import RoundFaults, RoundLog, Start
from ..core.schema import FieldConstraints
from ..typing import ClientId
from .clock import Clock, Devices, Stamp, Times, Work
from .costs import Costs
from .faults import Faults

ROUNDING = 1e-9  # of a batch: a batch that ends with the arrival of the download fits


class RoundTimer:
    """Simulates how long work takes on every client's device, faults included.

    Args:
        devices: speeds of clients, network and server.
        pool: the clients; their rows determine their work.
        faults: clients that are slow, absent or Byzantine.
        seed: seed of the run, which determines the speed of each client.
        deadline: simulated seconds that the server waits in a round; None waits for all clients.
        constraints: constraints of the upload's fields, for byzantine clients that collude.
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

    def faults(
        self, t: int, costs: Costs, clock: Clock, starts: Mapping[ClientId, Start] = MappingProxyType({})
    ) -> RoundFaults:
        """Return the faults of round ``t``. An upload is late if it arrives after the deadline by ``clock``.

        Args:
            t: the round, counted from 0.
            costs: the work of a round.
            clock: the clock that the run follows.
            starts: clients that started in an earlier round, whose faults are those of that round.
        """

        def is_late(i: ClientId, up: int, down: int) -> bool:
            if self._deadline is None:
                return False
            return clock.arrival(i, self.of(t, i, costs, up, down)) > clock.server + self._deadline

        def absence(i: ClientId) -> str | None:
            return self._faults.absence(starts[i].version if i in starts else t, i)

        return RoundFaults(absence, is_late, partial(self._faults.tamper, constraints=self._constraints))

    def times(self, log: RoundLog, spent: Mapping[ClientId, tuple[float, float]]) -> dict[ClientId, Times]:
        """Return how long the work of each client took that answered in a round.

        Args:
            log: record of the round.
            spent: the work of each client of the round, before and after its upload.
        """
        missed = {dropped.client for dropped in log.dropped}
        return {
            i: self._times(log.version(i), i, Work(*spent[i], log.up.get(i, 0), log.down[i]))
            for i in log.cohort
            if i not in missed
        }

    def stamps(
        self, log: RoundLog, times: Mapping[ClientId, Times], server: float, clocks: Mapping[str, Clock]
    ) -> dict[str, Stamp]:
        """Advance the clocks by a round, and return the times at which its models are ready by each clock.

        Args:
            log: record of the round.
            times: durations of the clients that answered.
            server: the server's work.
            clocks: clocks by name.
        """
        aggregation = self._devices.aggregation(0 if log.is_empty else server)
        limit = self._deadline if log.dropped else None
        return {
            name: clock.round(times, aggregation, limit, {i: start.sent[name] for i, start in log.starts.items()})
            for name, clock in clocks.items()
        }

    def arrival(self, i: ClientId, start: Start, costs: Costs, name: str, clock: Clock) -> float:
        """Return the time at which the upload of a client at work arrives, with the bytes of a dry run.

        Args:
            i: the client.
            start: the beginning of its work.
            costs: the work of a round.
            name: name of the clock.
            clock: the clock that the run follows.
        """
        traffic = costs.traffic[self._pool.models[i].name]
        return clock.arrival(i, self.of(start.version, i, costs, *traffic), start.sent[name])

    def budgets(self, clients: Mapping[ClientId, Start], costs: Costs, name: str, clock: Clock) -> dict[ClientId, int]:
        """Return the number of batches that each client can train on before its next download arrives.

        The server sends the next downloads when it has aggregated the uploads of all ``clients``. A client trains from
        the end of the work that it uploads until then.

        Args:
            clients: the clients of a round that answer, with the beginning of their work.
            costs: the work of a round, with that of bounded training.
            name: name of the clock.
            clock: the clock that the run follows.
        """
        arrivals = [self.arrival(i, start, costs, name, clock) for i, start in clients.items()]
        next_round = max([clock.server, *arrivals]) + self._devices.aggregation(costs.server)
        found = {}
        for i, start in clients.items():
            traffic = costs.traffic[self._pool.models[i].name]
            none, one = (self.of(start.version, i, costs, *traffic, budget) for budget in (0, 1))
            uploads = clock.start(i, none, start.sent[name]) + none.local
            left = next_round + none.download - uploads - none.personal
            found[i] = max(0, floor(left / (one.personal - none.personal) + ROUNDING))
        return found

    def of(self, t: int, i: ClientId, costs: Costs, up: int, down: int, budget: int | None = None) -> Times:
        """Return how long the work of client ``i`` takes in round ``t``, with ``budget`` batches after the upload."""
        return self._times(t, i, Work(*costs.of(self._pool, i, budget), up, down))

    def _times(self, t: int, i: ClientId, work: Work) -> Times:
        return self._faults.delay(self._devices.times(work, i, self._seed), t, i)
