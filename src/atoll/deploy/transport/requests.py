"""Send a request to many sites at once, wait with time limits, and report sites that do not answer."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import AtollError
from ...typing import ClientId
from .base import Arrival, Ticket, Transport
from .protocol import CODES, PASSING, Frame, ProtocolError, error, pack, unpack

LISTEN = 0.5  # seconds to listen before looking at clocks again
LONGEST = 600.0  # seconds between two tries with a site that fails

Say = Callable[[str], None]


class Timeouts(NamedTuple):
    """How long the server waits, in seconds."""

    timeout: float = 600.0  # after which it goes on without those who have not answered, if enough have
    limit: float = 3600.0  # after which it gives up if not enough have
    pause: float = 5.0  # between two tries with one site


@dataclass
class _Call:
    """A request to one site."""

    site: ClientId
    data: bytes
    ticket: Ticket | None = None  # of what is under way
    announcing: bool = False  # whether that is the introduction to the run
    code: str | None = None  # why the last try failed
    rest_until: float = 0.0  # when to try again
    failures: int = 0  # of the site itself, not of the way to it


@dataclass
class _Question:
    """A request to several sites and its progress."""

    calls: dict[ClientId, _Call]
    least: int
    started: float
    good: int = 0
    announced: bool = False
    answered: list[tuple[ClientId, Frame]] = field(default_factory=list)

    def hand_over_failed(self) -> None:
        for site in [i for i, call in self.calls.items() if call.code and call.code not in PASSING]:
            self.answered.append((site, error(str(self.calls.pop(site).code))))

    def settled(self, late: bool) -> bool:
        """Return True if no further reply is worth waiting for."""
        if self.good < self.least:
            return False
        hopeful = [call for call in self.calls.values() if call.code is None or call.code in PASSING]
        return late or not hopeful


class SiteRequests:
    """Sends requests to sites through a transport. A request may be sent again; a site carries it out once."""

    def __init__(self, line: Transport, timeouts: Timeouts, say: Say, clock: Callable[[], float] = time.monotonic):
        self.line, self.timeouts = line, timeouts
        self.late = 0  # replies that came when nobody waited for them any more
        self.announcements: dict[ClientId, bytes] = {}  # packed: what tells a site of the run
        self._say, self._clock = say, clock
        self._tickets: dict[Ticket, _Call] = {}

    def announce(self, frames: Mapping[ClientId, Frame]) -> None:
        """Set the announcement for sites that do not know the run."""
        self.announcements = {site: pack(frame) for site, frame in frames.items()}

    def ask(
        self,
        requests: Mapping[ClientId, Frame],
        least: int,
        what: str,
        timeouts: Timeouts | None = None,
        strict: bool = False,
    ) -> Iterator[tuple[ClientId, Frame]]:
        """Yield replies as they arrive; at the end, errors for sites without a reply.

        Over when all have answered, or at the timeout if at least ``least`` have. Until then sites that cannot be
        reached are tried again, and later, while fewer than that have answered, those that failed as well; when
        ``strict``, what fails is handed over at once instead.
        """
        terms = timeouts or self.timeouts
        question = _Question({i: _Call(i, pack(frame)) for i, frame in requests.items()}, least, self._clock())
        self._tickets.clear()  # whatever still comes of earlier questions is late
        while question.calls:
            self._dispatch(question, terms)
            for arrival in self.line.receive(LISTEN):
                self._take(question, arrival, terms)
            if strict:
                question.hand_over_failed()
            yield from question.answered
            question.answered.clear()
            waited = self._clock() - question.started
            if question.settled(waited >= terms.timeout):
                break
            self._watch(question, waited, what, terms)
        for site, call in question.calls.items():
            yield site, error(call.code or "silent")

    def _dispatch(self, question: _Question, terms: Timeouts) -> None:
        """Send pending requests to all sites that can be reached."""
        now, present = self._clock(), set(self.line.present())
        due = []
        for call in question.calls.values():
            if call.ticket is None and now >= call.rest_until:
                if call.site in present:
                    due.append(call)
                elif call.code is None:
                    call.code = "offline"
        if not due:
            return
        tickets = self.line.send({c.site: self.announcements[c.site] if c.announcing else c.data for c in due})
        for call in due:
            call.ticket = tickets.get(call.site)
            if call.ticket is None:
                call.code, call.rest_until = "offline", now + terms.pause
            else:
                call.code = None
                self._tickets[call.ticket] = call

    def _take(self, question: _Question, arrival: Arrival, terms: Timeouts) -> None:
        call = self._tickets.pop(arrival.ticket, None)
        if call is None:
            self.late += _read(arrival).code is None
            return
        call.ticket = None
        reply = _read(arrival)
        if reply.code is not None:
            self._failed(call, reply.code, terms)
        elif call.announcing:
            call.announcing = False
        else:
            del question.calls[call.site]
            question.good += 1
            question.answered.append((call.site, reply))

    def _failed(self, call: _Call, code: str, terms: Timeouts) -> None:
        if code == "run" and not call.announcing and call.site in self.announcements:
            call.announcing = True  # at once: it only has to be told
            return
        call.announcing = False
        call.failures += code not in PASSING
        pause = min(terms.pause * 2**call.failures, LONGEST)  # what fails at a site may have cost it much work
        call.code, call.rest_until = code, self._clock() + pause

    def _watch(self, question: _Question, waited: float, what: str, terms: Timeouts) -> None:
        """Report a delay, and give up after the limit."""
        missing = [call for call in question.calls.values() if call.ticket is None or waited >= terms.timeout]
        if not missing:
            return
        if waited >= max(terms.limit, terms.timeout):
            raise AtollError(
                f"{what}: {question.good} of at least {question.least} sites answered within {waited:.0f} s. "
                f"{_reasons(missing)} Then give the same command again: the run goes on from its checkpoint."
            )
        if not question.announced:
            question.announced = True
            self._say(f"{what} waits for {', '.join(call.site for call in missing)}. {_reasons(missing)}")


def _read(arrival: Arrival) -> Frame:
    if arrival.code is not None:
        return error(arrival.code)
    try:
        return unpack(arrival.data)
    except ProtocolError:
        return error("request")


def _reasons(calls: list[_Call]) -> str:
    """Return the reasons for missing sites, grouped."""
    sites: dict[str, list[str]] = {}
    for call in calls:
        sites.setdefault(call.code or "silent", []).append(repr(call.site))
    return " ".join(
        f"{'Site' if len(names) == 1 else 'Sites'} {', '.join(names)}: {CODES[code]}." for code, names in sites.items()
    )
