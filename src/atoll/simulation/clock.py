"""A virtual clock: how long rounds would take between real devices, with waiting and without (SCD, section 3.3).

A client that waits trains both its parts and then uploads; a wait-free one uploads as soon as the part that others need
is ready, and trains its personal part while the network and the server are busy. What is learnt is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.hyperparams import setting
from ..core.prng import key, uniform
from ..errors import AtollError
from ..typing import ClientId

COMPUTE = ("operations", "measured")
COMMUNICATION = ("bandwidth", "fixed", "equal_to_personal")


@dataclass(frozen=True)
class Devices:
    """How fast clients, network and server are."""

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
        """Work per second, between slowest and fastest, evenly on a logarithmic scale; work may be seconds itself."""
        middle = 1.0 if self.compute == "measured" else self.speed
        return float(middle * self.spread ** (2 * float(uniform(key(seed, "speed", i))) - 1))

    def times(self, work: "Work", i: ClientId, seed: int) -> "Times":
        speed = self.speed_of(i, seed)
        local, personal = work.local / speed, work.personal / speed
        if self.communication == "fixed":
            return Times(local, personal, self.seconds, 0.0)
        if self.communication == "equal_to_personal":
            return Times(local, personal, personal, 0.0)
        return Times(local, personal, self.latency + work.up / self.up, self.latency + work.down / self.down)

    def aggregation(self, work: float) -> float:
        if self.communication != "bandwidth":
            return 0.0
        return work if self.compute == "measured" else work / self.server


class Work(NamedTuple):
    """What one client does in a round."""

    local: float  # before the upload: operations, or seconds on this machine
    personal: float  # after it
    up: float  # bytes
    down: float


class Times(NamedTuple):
    """The same in seconds."""

    local: float
    personal: float
    upload: float
    download: float


class Stamp(NamedTuple):
    generic: float  # when the server has aggregated
    personal: float  # when the last client of the round has its personal model


@dataclass
class Clock:
    """The time of one federation, seconds since it began."""

    overlap: bool
    server: float = 0.0
    free: dict[ClientId, float] = field(default_factory=dict)  # when each client is done with its own work

    def arrival(self, i: ClientId, t: Times) -> float:
        """When the server will have a client's upload."""
        trained = self.start(i, t) + t.local
        return (trained if self.overlap else trained + t.personal) + t.upload

    def round(self, clients: Mapping[ClientId, Times], aggregation: float, limit: float | None = None) -> Stamp:
        """One round: download, work, upload, aggregation. Whoever is not in it neither works nor waits.

        ``limit`` is for a round in which somebody is missed: how long the server waits in all.
        """
        sent, ready = [self.server if limit is None else self.server + limit], []
        for i, t in clients.items():
            done = self.start(i, t) + t.local + t.personal
            sent.append(self.arrival(i, t))
            ready.append(done)
            self.free[i] = done
        self.server = max(sent) + aggregation
        return Stamp(self.server, max(ready, default=self.server))

    def start(self, i: ClientId, t: Times) -> float:
        """When a client begins to train: it has the download, and is done with its own work."""
        return max(self.server + t.download, self.free.get(i, 0.0))
