"""How frames reach sites and come back: whatever carries them looks like this to the rest."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ...typing import ClientId

IDLE = 0.02  # seconds that a line without anything under way lets pass
Ticket = str


class Arrival(NamedTuple):
    """A reply, or the code of what became of the request."""

    ticket: Ticket
    data: bytes = b""
    code: str | None = None


class Transport(Protocol):
    """Carries packed frames to sites by name. Replies may come in any order, late or never."""

    def present(self) -> Collection[ClientId]:
        """The sites that can be reached now."""
        ...

    def send(self, requests: Mapping[ClientId, bytes]) -> dict[ClientId, Ticket]:
        """Send to several sites at once; a site that has no ticket was not sent anything."""
        ...

    def receive(self, wait: float) -> list[Arrival]:
        """What has come in of everything that was ever sent, waiting so long for a first one."""
        ...


class LocalTransport:
    """Sites of this machine, each a function of packed frames; one is answered whenever somebody listens."""

    def __init__(self, sites: Mapping[ClientId, Callable[[bytes], bytes]]):
        self.sites = dict(sites)
        self._waiting: deque[tuple[Ticket, ClientId, bytes]] = deque()
        self._count = 0

    def present(self) -> Collection[ClientId]:
        return self.sites.keys()

    def send(self, requests: Mapping[ClientId, bytes]) -> dict[ClientId, Ticket]:
        tickets = {}
        for site, data in requests.items():
            self._count += 1
            tickets[site] = str(self._count)
            self._waiting.append((tickets[site], site, data))
        return tickets

    def receive(self, wait: float) -> list[Arrival]:
        if not self._waiting:
            time.sleep(min(wait, IDLE))
            return []
        ticket, site, data = self._waiting.popleft()
        return [Arrival(ticket, self.sites[site](data))]
