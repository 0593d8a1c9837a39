"""Send a request to many sites at once, wait with time limits, and report sites that do not answer."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import AtollError
from ...typing import ClientId
from .base import Arrival, Request, Ticket, Transport
from .protocol import CODES, PASSING, Frame, ProtocolError, error, pack, unpack

LISTEN = 0.5  # seconds to wait for replies before time limits are checked again
SMALL_REPLY = 2**20 + 2**16  # bytes of a reply without an upload
LONGEST = 600.0  # longest pause between two requests to a site that fails, in seconds

Say = Callable[[str], None]


class Timeouts(NamedTuple):
    """Time limits of the server, in seconds."""

    timeout: float = 600.0  # after which the server continues without missing sites, if enough have answered
    limit: float = 3600.0  # after which the server gives up if too few sites have answered
    pause: float = 5.0  # between two requests to one site


@dataclass
class _Call:
    """A request to one site."""

    site: ClientId
    request: Request
    ticket: Ticket | None = None  # of the message that is under way
    announcing: bool = False  # True if that message announces the run
    code: str | None = None  # reason of the last failure
    rest_until: float = 0.0  # earliest time of the next message
    failures: int = 0  # number of failures at the site, without those of the network


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
        """Give up on sites whose failure does not pass by itself."""
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

    def __init__(self, transport: Transport, timeouts: Timeouts, say: Say, clock: Callable[[], float] = time.monotonic):
        self.transport = transport
        self.timeouts = timeouts
        self.late = 0  # number of replies that came after their time limit
        self.announcements: dict[ClientId, Request] = {}  # of the run
        self._say = say
        self._clock = clock
        self._tickets: dict[Ticket, _Call] = {}

    def announce(self, frames: Mapping[ClientId, Frame]) -> None:
        """Set the announcement for sites that do not know the run."""
        self.announcements = {site: Request(pack(frame), SMALL_REPLY) for site, frame in frames.items()}

    def ask(
        self,
        requests: Mapping[ClientId, Frame],
        least: int,
        what: str,
        timeouts: Timeouts | None = None,
        strict: bool = False,
        upload_bytes: Mapping[ClientId, int] | None = None,
    ) -> Iterator[tuple[ClientId, Frame]]:
        """Yield replies as they arrive; at the end, errors for sites without a reply.

        Ends when all sites have answered, or at the timeout if at least ``least`` have. Until then, requests are sent
        again to sites that cannot be reached, and, while fewer than ``least`` have answered, to sites that failed.

        Args:
            requests: a request for each site.
            least: smallest number of replies.
            what: name of the step, for messages.
            timeouts: time limits; None for those of the run.
            strict: yield the error of a site that fails at once, instead of asking again.
            upload_bytes: most bytes of the uploads in the replies, by site; None for replies without uploads.

        Raises:
            AtollError: if fewer than ``least`` sites have answered after the limit.
        """
        terms = timeouts or self.timeouts
        sizes = upload_bytes or {}
        calls = {i: _Call(i, Request(pack(frame), SMALL_REPLY + sizes.get(i, 0))) for i, frame in requests.items()}
        question = _Question(calls, least, self._clock())
        self._tickets.clear()  # Replies to earlier requests are late from now on.
        while question.calls:
            self._dispatch(question, terms)
            for arrival in self.transport.receive(LISTEN):
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
        now, present = self._clock(), set(self.transport.present())
        due = []
        for call in question.calls.values():
            if call.ticket is None and now >= call.rest_until:
                if call.site in present:
                    due.append(call)
                elif call.code is None:
                    call.code = "offline"
        if not due:
            return
        tickets = self.transport.send({c.site: self.announcements[c.site] if c.announcing else c.request for c in due})
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
        if arrival.reason:
            self._say(f"Site {call.site!r}: {arrival.reason}")
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
            call.announcing = True  # Sent at once: the site only has to learn of the run.
            return
        call.announcing = False
        call.failures += code not in PASSING
        pause = min(terms.pause * 2**call.failures, LONGEST)  # A failed request may have cost the site much work.
        call.code, call.rest_until = code, self._clock() + pause

    def _watch(self, question: _Question, waited: float, what: str, terms: Timeouts) -> None:
        """Report a delay, and give up after the limit."""
        missing = [call for call in question.calls.values() if call.ticket is None or waited >= terms.timeout]
        if not missing:
            return
        if waited >= max(terms.limit, terms.timeout):
            raise AtollError(
                f"{what}: {question.good} of at least {question.least} sites answered within {waited:.0f} s. "
                f"{_reasons(missing)} Then run the same command again: the run continues from its checkpoint."
            )
        if not question.announced:
            question.announced = True
            self._say(f"{what} waits for {', '.join(call.site for call in missing)}. {_reasons(missing)}")


def _read(arrival: Arrival) -> Frame:
    if arrival.code is not None:
        return error(arrival.code)
    if arrival.reason:
        return Frame("flawed", {})
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
