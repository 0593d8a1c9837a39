"""The reverse proxy over real sockets, with a stand-in for Flower behind it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.server import access, http_connection, places, proxy
from atoll.deploy.server.upload_quota import AskedBytes, UploadQuota

OPERATION = "/v1/fleet/pull-messages"


@pytest.fixture
def home(tmp_path: Path) -> FederationDir:
    made = FederationDir(tmp_path / "federation")
    made.create(["north", "south"], ["localhost"], 8443, 30)
    return made


def key_of(home: FederationDir, name: str) -> str:
    return pki.header(home.read().sites[name].key.encode())


class Pieces(httpx.AsyncByteStream):
    """An answer that comes from a socket, as it were."""

    def __init__(self, content: bytes):
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


class Torn(httpx.AsyncByteStream):
    """An answer that breaks off."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"half"
        raise httpx.ReadError("reset")


class Behind:
    """Answers like Flower would, and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []
        self.bodies: list[bytes] = []
        self.status, self.content, self.away, self.torn = 200, b"fine", False, False

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("refused")
        self.seen.append(request)
        self.bodies.append(await request.aread())
        headers = {"content-type": "application/x-protobuf", "server": "secret"}
        return httpx.Response(self.status, headers=headers, stream=Torn() if self.torn else Pieces(self.content))


@asynccontextmanager
async def opened(home: FederationDir, behind: Behind) -> AsyncIterator[int]:
    """A gate on the loopback, with TLS; its port."""
    upstream = httpx.AsyncClient(base_url="http://flower", transport=httpx.MockTransport(behind))
    async with upstream:
        keys = access.KeyChecker(home)
        made = proxy.ReverseProxy(keys, UploadQuota(home.state, keys.upload_bytes_per_hour), upstream)
        listener = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=proxy.server_context(home))
        async with listener:
            yield listener.sockets[0].getsockname()[1]


@asynccontextmanager
async def visiting(home: FederationDir, port: int) -> AsyncIterator[httpx.AsyncClient]:
    context = ssl.create_default_context(cafile=str(home.ca))
    async with httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=context, trust_env=False) as client:
        yield client


def try_out(home: FederationDir, steps: Callable[[httpx.AsyncClient, Behind], Awaitable[None]]) -> Behind:
    async def scene() -> Behind:
        behind = Behind()
        async with opened(home, behind) as port, visiting(home, port) as client:
            await steps(client, behind)
        return behind

    return asyncio.run(asyncio.wait_for(scene(), 20))


def say_raw(home: FederationDir, *pieces: bytes) -> bytes:
    """Bytes as they are, past any client that would tidy them up."""

    async def scene() -> bytes:
        behind = Behind()
        async with opened(home, behind) as port:
            context = ssl.create_default_context(cafile=str(home.ca))
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            got = await reader.read(4000)
            writer.close()
            assert not [r for r in behind.seen if r.url.path != OPERATION]
            return got

    return asyncio.run(asyncio.wait_for(scene(), 20))


def test_operation_passes_with_body_and_only_flower_headers(home: FederationDir) -> None:
    body = bytes(range(256)) * 2000
    sent = {
        "flwr-public-key": key_of(home, "north"), "flwr-signature": "s", "content-type": "application/x-protobuf",
        "x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4", "cookie": "c", "authorization": "a", "host": "evil",
        "te": "trailers",
    }  # fmt: skip

    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        for _ in range(2):  # the second one on the same connection
            answer = await client.post(OPERATION, content=body, headers=sent)
            assert (answer.status_code, answer.content) == (200, b"fine")
            assert answer.headers["content-type"] == "application/x-protobuf"
            assert "server" not in answer.headers

    behind = try_out(home, steps)
    assert behind.bodies == [body, body]
    (first, _) = behind.seen
    assert first.url.path == OPERATION
    assert first.headers["flwr-signature"] == "s"
    assert first.headers["host"] == "flower"
    assert not {"x-forwarded-for", "forwarded", "cookie", "authorization", "te"} & set(first.headers)


def test_refused_requests_never_reach_flower(home: FederationDir) -> None:
    home.revoke("south")

    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        north = {"flwr-public-key": key_of(home, "north")}
        south = {"flwr-public-key": key_of(home, "south")}
        assert (await client.post("/v1/control/start-run", content=b"x", headers=north)).status_code == 403
        assert (await client.post("/v1/runtime/acquire-task", headers=north)).status_code == 403
        assert (await client.post(OPERATION, content=b"x")).status_code == 401
        assert (await client.post(OPERATION, content=b"x", headers=south)).status_code == 401
        assert (await client.get("/health", headers=south)).status_code == 401
        assert behind.seen == []
        assert (await client.get("/health")).status_code == 200

    try_out(home, steps)


def test_health_checks_follow_each_other_on_one_connection(home: FederationDir) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"

    async def scene() -> bytes:
        async with opened(home, Behind()) as port:
            context = ssl.create_default_context(cafile=str(home.ca))
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
            got = b""
            for count in (1, 2):
                writer.write(request)
                while got.count(b"0\r\n\r\n") < count:  # the end of an answer in chunks
                    piece = await reader.read(4000)
                    assert piece, "the gate closed the connection"
                    got += piece
            writer.close()
            return got

    assert asyncio.run(asyncio.wait_for(scene(), 20)).count(b"HTTP/1.1 200") == 2


def test_health_check_with_content_is_refused(home: FederationDir) -> None:
    assert say_raw(home, b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").startswith(b"HTTP/1.1 400")


def test_all_keys_are_refused_while_the_federation_file_is_damaged(home: FederationDir) -> None:
    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        headers = {"flwr-public-key": key_of(home, "north")}
        good = home.file.read_text()
        home.file.write_text("sites: [")
        assert (await client.post(OPERATION, headers=headers)).status_code == 503
        home.file.write_text(good)
        assert (await client.post(OPERATION, headers=headers)).status_code == 200

    try_out(home, steps)


def test_body_beyond_the_limit_is_refused(home: FederationDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_BODY", 1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield bytes(100)

    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        headers = {"flwr-public-key": key_of(home, "north")}
        assert (await client.post(OPERATION, content=bytes(1000), headers=headers)).status_code == 200
        assert (await client.post(OPERATION, content=bytes(1001), headers=headers)).status_code == 413
        assert (await client.post(OPERATION, content=pieces(), headers=headers)).status_code == 413  # of unknown length
        assert [len(body) for body in behind.bodies] == [1000]

    try_out(home, steps)


def test_body_announced_as_too_large_is_refused_unread(home: FederationDir) -> None:
    head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\nflwr-public-key: "
    assert say_raw(home, head + key_of(home, "north").encode() + b"\r\n\r\n").startswith(b"HTTP/1.1 413")


def test_answers_of_any_length_pass(home: FederationDir) -> None:
    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        headers = {"flwr-public-key": key_of(home, "north")}
        for content in (b"", b"x" * 3_000_000):
            behind.status, behind.content = 404, content
            answer = await client.post(OPERATION, headers=headers)
            assert (answer.status_code, answer.content) == (404, content)

    try_out(home, steps)


def test_unreachable_flower_gives_status_502(home: FederationDir) -> None:
    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        behind.away = True
        headers = {"flwr-public-key": key_of(home, "north")}
        assert (await client.post(OPERATION, content=b"x", headers=headers)).status_code == 502

    try_out(home, steps)


def test_answer_of_flower_that_breaks_off_is_followed_by_no_other(home: FederationDir) -> None:
    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        behind.torn = True
        headers = {"flwr-public-key": key_of(home, "north")}
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
            await client.post(OPERATION, content=b"x", headers=headers)
        behind.torn = False
        assert (await client.post(OPERATION, content=b"x", headers=headers)).status_code == 200

    try_out(home, steps)


def test_body_that_breaks_off_is_not_passed_on_whole(home: FederationDir) -> None:
    async def scene() -> Behind:
        behind = Behind()
        async with opened(home, behind) as port:
            context = ssl.create_default_context(cafile=str(home.ca))
            _, writer = await asyncio.open_connection("localhost", port, ssl=context)
            head = (
                f"POST {OPERATION} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nflwr-public-key: {key_of(home, 'north')}"
            )
            writer.write(head.encode() + b"\r\n\r\nhalf")
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.5)
        return behind

    behind = asyncio.run(asyncio.wait_for(scene(), 20))

    assert behind.bodies == []


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: \xb2\r\n\r\n",  # a digit to str.isdigit
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad name: x\r\n\r\n",
    ],
)
def test_malformed_request_is_refused(home: FederationDir, request_: bytes) -> None:
    assert say_raw(home, request_ + b"\r\n\r\n")[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501", b"HTTP/1.1 431")


def test_request_smuggled_in_a_body_is_not_run(home: FederationDir) -> None:
    """A request may be smuggled behind a body with both a length and chunks: chunks count, and the rest is not run."""
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nhost: x\r\n\r\n"
    key = key_of(home, "north").encode()
    head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\nflwr-public-key: " + key + b"\r\n"
    got = say_raw(
        home, head + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" % (len(hidden) + 5) + hidden
    )
    assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
    assert got.count(b"HTTP/1.1 200") <= 1


def test_silent_connection_is_closed_after_the_time_limit(home: FederationDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "FIRST_SECONDS", 0.3)
    assert say_raw(home) == b""
    assert say_raw(home, b"GET /health HT") == b""


def test_incomplete_body_ends_the_request_after_the_time_limit(
    home: FederationDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "BODY_SECONDS", 0.3)
    head = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nflwr-public-key: "
    assert b"200" not in say_raw(home, head + key_of(home, "north").encode() + b"\r\n\r\nabc")


def test_connections_beyond_the_limit_are_closed(home: FederationDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_STRANGERS", 0)
    with suppress(ConnectionError):  # as good an answer
        assert say_raw(home, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") == b""


def test_sites_get_through_while_a_stranger_holds_connections(home: FederationDir) -> None:
    """With 600 idle connections of one address, which is also that of the site."""

    async def scene() -> tuple[int, float]:
        async with opened(home, Behind()) as port:
            context = ssl.create_default_context(cafile=str(home.ca))
            plain = [asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
            held = await asyncio.gather(*plain, return_exceptions=True)
            secure = [asyncio.open_connection("localhost", port, ssl=context) for _ in range(20)]
            held += await asyncio.gather(*secure, return_exceptions=True)
            started = asyncio.get_running_loop().time()
            while True:  # A site tries again: the places of strangers are free after three seconds at the latest.
                with suppress(httpx.HTTPError):
                    async with visiting(home, port) as client:
                        answer = await client.post(OPERATION, headers={"flwr-public-key": key_of(home, "north")})
                        return answer.status_code, asyncio.get_running_loop().time() - started
                await asyncio.sleep(0.1)

    status, seconds = asyncio.run(asyncio.wait_for(scene(), 30))
    assert status == 200
    assert seconds < http_connection.FIRST_SECONDS + 3


def test_strangers_of_one_address_leave_places_for_other_addresses() -> None:
    held = places.Places()
    assert [held.enter("stranger") for _ in range(9)] == [True] * 8 + [False]
    assert held.enter("site")
    assert held.recognise("site", "a key")
    held.leave("stranger", None)
    assert held.enter("stranger")


def test_places_of_strangers_are_limited_in_all_and_freed_when_a_key_is_shown() -> None:
    held = places.Places()
    assert sum(held.enter(f"address {n}") for n in range(places.MAX_STRANGERS + 5)) == places.MAX_STRANGERS
    assert held.recognise("address 0", "a key")
    assert held.enter("one more")
    held.leave("address 0", "a key")
    assert not held.enter("another")


def test_connections_with_one_key_leave_places_for_other_keys() -> None:
    """A site, or a stranger who knows a public key, holds as many connections as possible, from many addresses."""
    held = places.Places()

    got = [held.enter(f"address {n}") and held.recognise(f"address {n}", "north") for n in range(500)]

    assert sum(got) == places.MAX_PER_KEY
    for n in range(500):
        if not got[n]:
            held.leave(f"address {n}", None)
    assert held.enter("south's address")
    assert held.recognise("south's address", "south")


def test_places_of_all_keys_together_are_limited() -> None:
    held = places.Places()

    got = [held.enter(f"address {n}") and held.recognise(f"address {n}", f"key {n}") for n in range(500)]

    assert sum(got) == places.MAX_CONNECTIONS - places.MAX_STRANGERS


def test_addresses_of_one_network_of_ipv6_are_one_stranger() -> None:
    held = places.Places()

    assert sum(held.enter(f"2001:db8::{n:x}") for n in range(1, 20)) == places.MAX_STRANGERS_PER_NETWORK
    assert held.enter("2001:db8:0:1::1")
    assert [held.enter(f"::ffff:10.0.0.{n}") for n in range(9)] == [True] * 9


def test_site_beyond_the_places_of_its_key_is_answered_and_has_a_strangers_time(
    home: FederationDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_PER_KEY", 0)
    monkeypatch.setattr(proxy, "FIRST_SECONDS", 0.3)
    head = (
        f"POST {OPERATION} HTTP/1.1\r\nhost: x\r\nflwr-public-key: {key_of(home, 'north')}\r\ncontent-length: 0\r\n\r\n"
    )

    async def scene() -> bytes:
        async with opened(home, Behind()) as port:
            context = ssl.create_default_context(cafile=str(home.ca))
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
            writer.write(head.encode())
            got = await reader.read()  # until the gate closes the connection
            writer.close()
            return got

    assert asyncio.run(asyncio.wait_for(scene(), 10)).startswith(b"HTTP/1.1 200")


def push(node: int, **metadata: Any) -> bytes:
    """A list of one message, as a site pushes it."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    request = PushMessagesRequest()
    request.node.node_id = node
    told = {"src_node_id": node, "dst_node_id": 1, "reply_to_message_id": "m"} | metadata
    message = request.messages_list.add()
    for name, value in told.items():
        setattr(message.metadata, name, value)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (push(5), 200),
        (push(5, reply_to_message_id=""), 403),  # an order
        (push(5, src_node_id=1), 403),  # in the server's name
        (push(5, src_node_id=6), 403),  # in another site's name
        (push(5, dst_node_id=6), 403),  # to another site
        (b"\xff" * 50, 403),
        (bytes(2**20 + 1), 413),
    ],
)
def test_only_replies_of_the_sender_to_the_server_pass(home: FederationDir, body: bytes, status: int) -> None:
    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        headers = {"flwr-public-key": key_of(home, "north")}
        answer = await client.post("/v1/fleet/push-messages", content=body, headers=headers)
        assert answer.status_code == status

    assert try_out(home, steps).bodies == ([body] if status == 200 else [])


def test_uploads_beyond_what_was_asked_for_are_refused_and_other_requests_pass(home: FederationDir) -> None:
    home.write(replace(home.read(), upload_mb_per_hour=1))
    AskedBytes(home.state).add({"north": 2**20})

    async def steps(client: httpx.AsyncClient, behind: Behind) -> None:
        def status(path: str, size: int, name: str = "north") -> Awaitable[httpx.Response]:
            return client.post(path, content=bytes(size), headers={"flwr-public-key": key_of(home, name)})

        pushed = [await status("/v1/fleet/push-object", 2**19) for _ in range(8)]
        assert [answer.status_code for answer in pushed] == [200] * 6 + [429] * 2  # twice 1 MB, and 1 MB of the hour
        assert (await status(OPERATION, 2**20)).status_code == 200
        assert (await status("/v1/fleet/push-object", 2**19, "south")).status_code == 200

    try_out(home, steps)


def test_request_without_tls_gets_no_answer(home: FederationDir) -> None:
    async def scene() -> bytes:
        async with opened(home, Behind()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            try:
                return await reader.read(100)
            except ConnectionError:
                return b""

    assert b"HTTP" not in asyncio.run(asyncio.wait_for(scene(), 20))


def test_main_without_tls_beyond_the_loopback_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [str(tmp_path), "--host", "0.0.0.0", "--port", "1", "--upstream", "2", "--insecure"]
    monkeypatch.setattr("sys.argv", ["proxy", *words])

    with pytest.raises(SystemExit, match="for the loopback only"):
        proxy.main()


def test_main_passes_its_arguments_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor starts it with these words; a name that does not match ends it at once."""
    started: list[tuple[Path, str, int, int, bool]] = []

    async def listen(directory: FederationDir, host: str, port: int, upstream: int, insecure: bool) -> None:
        started.append((directory.path, host, port, upstream, insecure))

    monkeypatch.setattr(proxy, "run", listen)
    words = [str(tmp_path), "--host", "127.0.0.1", "--port", "1", "--upstream", "2", "--insecure"]
    monkeypatch.setattr("sys.argv", ["proxy", *words])

    proxy.main()

    assert started == [(tmp_path, "127.0.0.1", 1, 2, True)]
