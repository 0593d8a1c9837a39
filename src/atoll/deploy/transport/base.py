"""Define the interface of a transport, which carries frames to sites and back."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ...typing import ClientId

IDLE = 0.02  # seconds that a transport without messages waits
Ticket = str


class Arrival(NamedTuple):
    """A reply, the error code of a request that failed, or the reason why a reply that arrived cannot be used."""

    ticket: Ticket
    data: bytes = b""
    code: str | None = None
    reason: str = ""


class Request(NamedTuple):
    """A packed frame for a site, and the most bytes of its packed reply."""

    data: bytes
    reply_bytes: int


class Transport(Protocol):
    """Carries packed frames to sites by name. Replies may arrive in any order, late or never."""

    def present(self) -> Collection[ClientId]:
        """Return the sites that can be reached now."""
        ...

    def send(self, requests: Mapping[ClientId, Request]) -> dict[ClientId, Ticket]:
        """Send frames to several sites; return a ticket for each site that a frame was sent to."""
        ...

    def receive(self, wait: float) -> list[Arrival]:
        """Return replies to anything that was sent, waiting up to ``wait`` seconds for the first."""
        ...


class LocalTransport:
    """A transport to sites in this process, each a function of packed frames."""

    def __init__(self, sites: Mapping[ClientId, Callable[[bytes], bytes]]):
        self.sites = dict(sites)
        self._waiting: deque[tuple[Ticket, ClientId, Request]] = deque()
        self._count = 0

    def present(self) -> Collection[ClientId]:
        return self.sites.keys()

    def send(self, requests: Mapping[ClientId, Request]) -> dict[ClientId, Ticket]:
        tickets = {}
        for site, request in requests.items():
            self._count += 1
            tickets[site] = str(self._count)
            self._waiting.append((tickets[site], site, request))
        return tickets

    def receive(self, wait: float) -> list[Arrival]:
        if not self._waiting:
            time.sleep(min(wait, IDLE))
            return []
        ticket, site, request = self._waiting.popleft()
        reply = self.sites[site](request.data)
        if len(reply) > request.reply_bytes:
            return [Arrival(ticket, reason=f"A reply of {len(reply):,} bytes is larger than expected.")]
        return [Arrival(ticket, reply)]
