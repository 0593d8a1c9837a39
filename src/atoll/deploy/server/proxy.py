"""The reverse proxy in front of Flower: the only part of a federation that listens to other machines.

Behind it, on the loopback, Flower has one port for everything, and whoever reaches that may register nodes and start
runs. The gate lets through what sites need (the fleet operations and the health check) from keys that the federation
accepts, and nothing else. Who is accepted is read from federation.yaml whenever that changes, so a revoked key is out
at once.

Requests are parsed strictly by h11, and only what was understood is sent on, made anew: no path, header or framing of a
stranger reaches Flower as it came. Bodies pass through in pieces.
"""

import argparse
import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import h11
import httpx

from ...errors import AtollError
from .. import pki
from ..addresses import is_loopback
from ..federation_dir import FederationDir, RegisteredSite
from ..flower_adapter import HEADER_PREFIXES, HEALTH, NODE_MANAGEMENT, OPERATION, PUBLIC_KEY_HEADER

MAX_BODY = 64 * 2**20  # Flower cuts what it sends into pieces of 5 MB
MAX_HEAD = 16 * 2**10
MAX_CONNECTIONS = 512
HEAD_SECONDS = 20.0  # until a request has begun and its head is there; also how long an idle connection is kept
BODY_SECONDS = 120.0  # for a whole request body
ANSWER_SECONDS = 120.0  # until Flower's answer is through
CHUNK = 2**16

# What may pass from one side to the other. Framing and connection headers belong to each side alone.
UP = {"content-type", "accept", "accept-encoding", "user-agent"}
DOWN = {"content-type", "content-encoding", "date"}


class Refusal(Exception):
    """An answer of the proxy itself in place of Flower."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


def check_path(method: str, target: str) -> None:
    """Raise Refusal unless the request is an operation of sites, spelt exactly: no query, no escapes, no dots."""
    if method == "GET" and target == HEALTH:
        return
    found = OPERATION.fullmatch(target)
    if method != "POST" or found is None or found[1] in NODE_MANAGEMENT:
        raise Refusal(403, "closed")


class KeyChecker:
    """Checks keys against federation.yaml, which it reads again when the file changes."""

    def __init__(self, directory: FederationDir):
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._sites: dict[str, RegisteredSite] = {}

    def check_key(self, target: str, key: str | None) -> None:
        """Raise Refusal unless the key is accepted.

        The health check needs no key, but a key that is shown must be valid.
        """
        if key is None and target == HEALTH:
            return
        site = self._known().get(key or "")
        refusal = "key not known" if site is None else site.refusal()
        if refusal:
            raise Refusal(401, refusal)

    def _known(self) -> dict[str, RegisteredSite]:
        found = self._directory.file.stat()
        mark = found.st_mtime_ns, found.st_ino
        if mark != self._seen:
            sites = self._directory.read().sites.values()
            self._sites, self._seen = {pki.header(site.key.encode()): site for site in sites}, mark
        return self._sites


class AnyKey(KeyChecker):
    """Accepts any key: for trials on the loopback without TLS."""

    def check_key(self, target: str, key: str | None) -> None:
        return


class Head(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: dict[str, str]


class ReverseProxy:
    """Serves connections, each with one request after the other."""

    def __init__(self, key_checker: KeyChecker, upstream: httpx.AsyncClient):
        self._key_checker, self._upstream, self._open = key_checker, upstream, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open += 1
        try:
            await self._talk(Connection(reader, writer))
        except (TimeoutError, OSError, h11.ProtocolError, ssl.SSLError):
            pass  # a visitor who went away, fell silent or spoke no HTTP; there is nobody to tell
        finally:
            self._open -= 1
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _talk(self, connection: "Connection") -> None:
        while (head := await connection.head()) is not None:
            try:
                check_path(head.method, head.target)
                self._key_checker.check_key(head.target, head.headers.get(PUBLIC_KEY_HEADER))
                _check_length(head)
                await self._forward(head, connection)
            except Refusal as refusal:
                await connection.answer(refusal.status, refusal.reason)
            except AtollError:  # federation.yaml cannot be read: then nobody is known
                await connection.answer(503, "the gate does not know whom to let in")
            except httpx.HTTPError:
                await connection.answer(502, "the server behind the gate does not answer")
            if not connection.next():
                return

    async def _forward(self, head: Head, connection: "Connection") -> None:
        request = self._upstream.build_request(
            head.method,
            head.target,
            headers=_passing(head.headers, UP),
            content=connection.body() if head.method == "POST" else None,
        )
        async with asyncio.timeout(BODY_SECONDS + ANSWER_SECONDS):
            answer = await self._upstream.send(request, stream=True)
            try:
                await connection.pass_on(answer)
            finally:
                await answer.aclose()


def _check_length(head: Head) -> None:
    declared = head.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > MAX_BODY:
        raise Refusal(413, "too large")


def _passing(headers: dict[str, str], allowed: set[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in allowed or name.startswith(HEADER_PREFIXES)}


class Connection:
    """A connection from outside, parsed by h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    async def head(self) -> Head | None:
        """Return the head of the next request, or None if the peer has closed the connection."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                event = await self._event()
        except h11.RemoteProtocolError as reason:
            await self.answer(reason.error_status_hint, "not understood")
            return None
        if not isinstance(event, h11.Request):
            return None
        headers: dict[str, str] = {}
        for name, value in event.headers:
            headers[name.decode("ascii")] = value.decode("latin-1")  # of doubles the last one counts, for all of us
        return Head(event.method.decode("ascii"), event.target.decode("latin-1"), headers)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield pieces of the request's body as they arrive."""
        size, deadline = 0, asyncio.get_running_loop().time() + BODY_SECONDS
        while True:
            async with asyncio.timeout_at(deadline):
                event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise ConnectionResetError("the visitor left in the middle")
            size += len(event.data)
            if size > MAX_BODY:
                raise Refusal(413, "too large")
            yield bytes(event.data)

    async def pass_on(self, answer: httpx.Response) -> None:
        headers = [(k, v) for k, v in _passing(dict(answer.headers.items()), DOWN).items()]
        length = answer.headers.get("content-length")
        headers.append(("content-length", length) if length else ("transfer-encoding", "chunked"))
        await self._send(h11.Response(status_code=answer.status_code, headers=headers))
        async for piece in answer.aiter_raw(CHUNK):
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def answer(self, status: int, text: str) -> None:
        """Send the proxy's own answer and close the connection, because the body may not have been read."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionResetError("half an answer is out already")
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


# -- the process ------------------------------------------------------------------------------------------------------


def server_context(directory: FederationDir) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory.cert, directory.key)
    return context


async def run(directory: FederationDir, host: str, port: int, upstream: int, insecure: bool) -> None:
    """Listen until a signal arrives."""
    context = None if insecure else server_context(directory)
    scheme, verify = ("http", False) if insecure else ("https", ssl.create_default_context(cafile=str(directory.ca)))
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=32)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=5.0)
    base = f"{scheme}://127.0.0.1:{upstream}"
    async with httpx.AsyncClient(base_url=base, verify=verify, limits=limits, timeout=timeout, trust_env=False) as up:
        gate = ReverseProxy(AnyKey(directory) if insecure else KeyChecker(directory), up)
        listener = await asyncio.start_server(gate.serve, host, port, ssl=context, backlog=128)
        done = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, done.set)
        await done.wait()
        listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m atoll.deploy.server.proxy")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True, help="port of Flower on the loopback")
    parser.add_argument("--insecure", action="store_true")
    given = parser.parse_args()
    if given.insecure and not is_loopback(given.host):
        raise SystemExit("--insecure is for the loopback only.")
    with suppress(KeyboardInterrupt):
        asyncio.run(run(FederationDir(given.directory), given.host, given.port, given.upstream, given.insecure))


if __name__ == "__main__":
    main()
