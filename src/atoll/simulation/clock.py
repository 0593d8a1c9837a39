"""Simulate how long rounds take on real devices, with and without waiting for personal training (SCD, section 3.3).

A waiting client trains its shared and its personal part and then uploads. A wait-free client uploads as soon as the
shared part is trained, and trains its personal part while the network and the server work. Both learn the same models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ..core.hyperparams import setting
from ..core.prng import key, uniform
from ..errors import AtollError
from ..typing import ClientId
from ..utils.undo import UndoDict

COMPUTE = ("operations", "measured")
COMMUNICATION = ("bandwidth", "fixed", "equal_to_personal")


@dataclass(frozen=True)
class Devices:
    """Speeds of clients, network and server."""

    compute: str = setting("operations", "what work is counted in: operations, or seconds measured here", "chosen here")
    speed: float = setting(1e10, "operations per second of a client", "a phone's CPU, order of magnitude")
    spread: float = setting(1.0, "fastest and slowest client: this factor above and below speed", "equal clients")
    up: float = setting(1e6, "bytes per second from a client", "8 Mbit/s")
    down: float = setting(4e6, "bytes per second to a client", "32 Mbit/s")
    latency: float = setting(0.05, "seconds before a message begins to arrive", "mobile network, order of magnitude")
    server: float = setting(1e12, "operations per second of the server", "a workstation, order of magnitude")
    communication: str = setting("bandwidth", "bandwidth, fixed, or equal_to_personal", "SCD's appendix is not public")
    seconds: float = setting(1.0, "length of communication where it is fixed", "chosen here")

    def __post_init__(self) -> None:
        for name in ("speed", "up", "down", "server"):
            if getattr(self, name) <= 0:
                raise AtollError(f"--clock {name} must be above 0, not {getattr(self, name)}.")
        if self.spread < 1:
            raise AtollError(f"--clock spread must be at least 1, not {self.spread}.")
        if min(self.latency, self.seconds) < 0:
            raise AtollError("--clock latency and seconds must not be negative.")
        if self.compute not in COMPUTE:
            raise AtollError(f"--clock compute is one of {', '.join(COMPUTE)}, not {self.compute!r}.")
        if self.communication not in COMMUNICATION:
            raise AtollError(f"--clock communication is one of {', '.join(COMMUNICATION)}, not {self.communication!r}.")

    def speed_of(self, i: ClientId, seed: int) -> float:
        """Return the work per second of client ``i``, log-uniform between the slowest and the fastest client."""
        middle = 1.0 if self.compute == "measured" else self.speed
        if self.spread == 1:
            return middle
        return float(middle * self.spread ** (2 * float(uniform(key(seed, "speed", i))) - 1))

    def times(self, work: "Work", i: ClientId, seed: int) -> "Times":
        """Return how long the work of client ``i`` takes."""
        speed = self.speed_of(i, seed)
        local, personal = work.local / speed, work.personal / speed
        if self.communication == "fixed":
            return Times(local, personal, self.seconds, 0.0)
        if self.communication == "equal_to_personal":
            return Times(local, personal, personal, 0.0)
        return Times(local, personal, self.latency + work.up / self.up, self.latency + work.down / self.down)

    def aggregation(self, work: float) -> float:
        """Return how long the work of the server takes."""
        if self.communication != "bandwidth":
            return 0.0
        return work if self.compute == "measured" else work / self.server


class Work(NamedTuple):
    """The work of one client in a round."""

    local: float  # before the upload: operations, or seconds on this machine
    personal: float  # after the upload
    up: float  # bytes
    down: float


class Times(NamedTuple):
    """The duration of one client's work in a round, in seconds."""

    local: float
    personal: float
    upload: float
    download: float


class Stamp(NamedTuple):
    """Simulated times at which the models of a round are ready."""

    generic: float  # when the server has aggregated
    personal: float  # when the last client of the round has its personal model


@dataclass
class Clock:
    """Simulated wall-clock time of a run, in seconds.

    Args:
        overlap: whether clients upload before their personal training.
        server: time at which the server finished the last round.
        free: time at which each client finished its last work.
    """

    overlap: bool
    server: float = 0.0
    free: UndoDict[ClientId, float] = field(default_factory=UndoDict)

    def arrival(self, i: ClientId, t: Times, sent: float | None = None) -> float:
        """Return the time at which the server has received a client's upload; see :meth:`start`."""
        trained = self.start(i, t, sent) + t.local
        return (trained if self.overlap else trained + t.personal) + t.upload

    def round(
        self,
        clients: Mapping[ClientId, Times],
        aggregation: float,
        limit: float | None = None,
        sent: Mapping[ClientId, float] = MappingProxyType({}),
    ) -> Stamp:
        """Advance the clock by one round: download, work, upload, aggregation.

        Args:
            clients: durations of the clients that take part.
            aggregation: duration of the server's work.
            limit: seconds that the server waits in a round with a missing client.
            sent: times at which the server sent downloads, of clients whose download is from an earlier round.
        """
        received, ready = [self.server if limit is None else self.server + limit], []
        for i, t in clients.items():
            trained = self.start(i, t, sent.get(i)) + t.local
            done = trained + t.personal
            received.append((trained if self.overlap else done) + t.upload)
            ready.append(done)
            self.free[i] = done
        self.server = max(received) + aggregation
        return Stamp(self.server, max(ready, default=self.server))

    def start(self, i: ClientId, t: Times, sent: float | None = None) -> float:
        """Return the time at which a client starts to train: after the download and after its last work.

        Args:
            i: the client.
            t: durations of its work.
            sent: time at which the server sent the download; None for the end of the last round.
        """
        return max((self.server if sent is None else sent) + t.download, self.free.get(i, 0.0))
