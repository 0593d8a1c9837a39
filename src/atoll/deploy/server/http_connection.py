"""Read requests of other machines strictly, and send answers, over one HTTP connection.

Requests are parsed by h11. Header, path and framing are rebuilt from the parsed request, so that Flower never receives
bytes as an outsider sent them. Bodies are forwarded in pieces.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import h11
import httpx

from ..flower_adapter.fleet import HEADER_PREFIXES
from .access import Refusal

MAX_BODY = 8 * 2**20  # Flower sends in pieces of 5 MB.
MAX_HEAD = 16 * 2**10
FIRST_SECONDS = 3.0  # until the head of the first request has arrived
HEAD_SECONDS = 20.0  # until the head of a later request has arrived: the life of an idle connection
BODY_SECONDS = 120.0  # for a whole request body
CHUNK = 2**16

# Headers that pass in each direction. Framing and connection headers belong to each side alone.
UP = {"content-type", "accept", "accept-encoding", "user-agent"}
DOWN = {"content-type", "content-encoding", "date"}


class Head(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: dict[str, str]


def check_length(head: Head) -> None:
    """Raise Refusal for a request whose announced body is too large."""
    if int(head.headers.get("content-length", "0")) > MAX_BODY:  # h11 lets numbers of at most 20 digits through
        raise Refusal(413, "too large")


def passing(headers: dict[str, str], allowed: set[str]) -> dict[str, str]:
    """Return the headers that may pass: those in ``allowed``, and Flower's own."""
    return {name: value for name, value in headers.items() if name in allowed or name.startswith(HEADER_PREFIXES)}


class Connection:
    """A connection from another machine, parsed by h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.key: str | None = None  # the key of the federation whose place the connection has

    @property
    def address(self) -> str:
        """Return the network address of the peer."""
        found = self._writer.get_extra_info("peername")
        return str(found[0]) if found else ""

    async def head(self, seconds: float) -> Head | None:
        """Return the head of the next request, or None if the peer has closed the connection."""
        try:
            async with asyncio.timeout(seconds):
                event = await self._event()
        except h11.RemoteProtocolError as reason:
            await self.answer(reason.error_status_hint, "not understood")
            return None
        if not isinstance(event, h11.Request):
            return None
        headers: dict[str, str] = {}
        for name, value in event.headers:
            headers[name.decode("ascii")] = value.decode("latin-1")  # of repeated headers, the last one counts
        return Head(event.method.decode("ascii"), event.target.decode("latin-1"), headers)

    async def body(self, count: Callable[[int], None] = lambda size: None) -> AsyncIterator[bytes]:
        """Yield pieces of the request's body as they arrive. ``count`` may refuse each piece by its size."""
        size, deadline = 0, asyncio.get_running_loop().time() + BODY_SECONDS
        while True:
            async with asyncio.timeout_at(deadline):
                event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return
            assert isinstance(event, h11.Data)  # A body that ends too early raises h11.RemoteProtocolError.
            size += len(event.data)
            if size > MAX_BODY:
                raise Refusal(413, "too large")
            count(len(event.data))
            yield bytes(event.data)

    async def pass_on(self, answer: httpx.Response) -> None:
        """Send an answer of Flower, in pieces."""
        headers = [(k, v) for k, v in passing(dict(answer.headers.items()), DOWN).items()]
        length = answer.headers.get("content-length")
        headers.append(("content-length", length) if length else ("transfer-encoding", "chunked"))
        await self._send(h11.Response(status_code=answer.status_code, headers=headers))
        async for piece in answer.aiter_raw(CHUNK):
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def answer(self, status: int, text: str) -> None:
        """Send the proxy's own answer and close the connection, because the body may not have been read.

        Raises:
            h11.LocalProtocolError: a part of another answer is already sent.
        """
        body = text.encode() + b"\n"
        headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            await self._send(event)

    def next(self) -> bool:
        """Prepare for another request on the same connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(MAX_HEAD))
        return event

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            async with asyncio.timeout(BODY_SECONDS):
                await self._writer.drain()
