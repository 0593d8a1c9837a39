"""Run the reverse proxy in front of Flower, the only part of a federation that listens to other machines.

Flower listens on the loopback, on one port for everything: any program that reaches the port may register nodes and
start runs. The proxy, called the gate in options and messages, passes only the requests that sites need (the fleet
operations and the health check), from keys that the federation accepts. Accepted keys are read from federation.yaml
whenever the file changes, so a revoked key is refused at once.
"""

import argparse
import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import h11
import httpx

from ...errors import AtollError
from ..addresses import is_loopback
from ..federation_dir import FederationDir
from ..flower_adapter.fleet import PUBLIC_KEY_HEADER, PUSH_MESSAGES, STORING, are_replies
from .access import AnyKey, KeyChecker, Refusal, check_path
from .http_connection import BODY_SECONDS, FIRST_SECONDS, HEAD_SECONDS, UP, Connection, Head, check_length, passing
from .places import MAX_CONNECTIONS, Places
from .upload_quota import UploadQuota

MAX_PUSH = 2**20  # bytes of a list of messages, whose contents follow in pieces
HANDSHAKE_SECONDS = 3.0  # for TLS, before a connection is counted
ANSWER_SECONDS = 120.0  # until Flower's answer is complete


class ReverseProxy:
    """Checks requests and forwards them to Flower. Each connection carries one request after the other."""

    def __init__(self, key_checker: KeyChecker, quota: UploadQuota, upstream: httpx.AsyncClient):
        self._key_checker = key_checker
        self._quota = quota
        self._upstream = upstream
        self._places = Places()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed."""
        connection = Connection(reader, writer)
        if not self._places.enter(connection.address):
            writer.transport.abort()
            return
        try:
            await self._talk(connection)
        except (TimeoutError, OSError, h11.ProtocolError, ssl.SSLError):
            pass  # The client has left, sends nothing or does not speak HTTP, so an answer would not arrive.
        finally:
            self._places.leave(connection.address, connection.key)
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _talk(self, connection: Connection) -> None:
        while (head := await connection.head(HEAD_SECONDS if connection.key else FIRST_SECONDS)) is not None:
            try:
                check_path(head.method, head.target)
                site = self._check_key(head, connection)
                check_length(head)
                await self._forward(head, connection, site)
            except Refusal as refusal:
                await connection.answer(refusal.status, refusal.reason)
            except AtollError:  # federation.yaml cannot be read, so no key is known
                await connection.answer(503, "the gate cannot read the list of accepted sites")
            except httpx.HTTPError:
                await connection.answer(502, "the server behind the gate does not answer")
            if not connection.next():
                return

    def _check_key(self, head: Head, connection: Connection) -> str | None:
        """Return the site of an accepted key, or raise Refusal. Its connection moves to a place of the key."""
        key = head.headers.get(PUBLIC_KEY_HEADER)
        site = self._key_checker.check_key(head.target, key)
        if key is not None and connection.key is None and self._places.recognise(connection.address, key):
            connection.key = key
        return site

    async def _content(
        self, head: Head, connection: Connection, site: str | None
    ) -> bytes | AsyncIterator[bytes] | None:
        """Return the body to pass on. A list of messages is read whole, because only replies may pass."""
        if head.method != "POST":
            async for _ in connection.body():  # to its end, so that another request can follow
                raise Refusal(400, "a health check has no content")
            return None
        if head.target not in STORING or site is None:
            pieces = connection.body()
        else:
            pieces = connection.body(partial(self._quota.take, site))
        if head.target != PUSH_MESSAGES:
            return pieces
        body = b""
        async for piece in pieces:
            body += piece
            if len(body) > MAX_PUSH:
                raise Refusal(413, "too large")
        if not are_replies(body):
            raise Refusal(403, "sites send replies only")
        return body

    async def _forward(self, head: Head, connection: Connection, site: str | None) -> None:
        request = self._upstream.build_request(
            head.method,
            head.target,
            headers=passing(head.headers, UP),
            content=await self._content(head, connection, site),
        )
        async with asyncio.timeout(BODY_SECONDS + ANSWER_SECONDS):
            answer = await self._upstream.send(request, stream=True)
            try:
                await connection.pass_on(answer)
            finally:
                await answer.aclose()


def server_context(directory: FederationDir) -> ssl.SSLContext:
    """Return the TLS settings of the server, with the certificate of the federation."""
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
        keys = AnyKey(directory) if insecure else KeyChecker(directory)
        proxy = ReverseProxy(keys, UploadQuota(directory.state, keys.upload_bytes_per_hour), up)
        handshake = None if insecure else HANDSHAKE_SECONDS
        listener = await asyncio.start_server(
            proxy.serve, host, port, ssl=context, ssl_handshake_timeout=handshake, backlog=512
        )
        done = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, done.set)
        await done.wait()
        listener.close()


def main() -> None:
    """Run the proxy with the arguments of the command line."""
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
