"""A stranger: has the federation's certificate and a site's public key, which are no secrets, and nothing else."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from support.attacks import Findings
from support.deployed_federation import Deployed

from atoll.deploy import pki

pytestmark = pytest.mark.redteam

CLOSED = (
    "/v1/control/start-run", "/v1/control/list-runs", "/v1/control/stop-run", "/v1/control/register-node",
    "/v1/runtime/acquire-task", "/v1/runtime/get-nodes", "/v1/fleet/register-node", "/v1/fleet/nonsense",
    "/docs", "/openapi.json",
)  # fmt: skip
TRICKS = (
    "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol/start-run",
    "//v1/control/start-run", "/V1/FLEET/pull-messages", "/v1/fleet/pull-messages?x=/v1/control/start-run",
    "/v1/fleet/pull-messages/", "/v1/fleet/pull-messages;x", "http://localhost/v1/control/start-run",
)  # fmt: skip


@pytest.fixture
def visitor(fed: Deployed) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    with httpx.Client(base_url=f"https://localhost:{fed.port}", verify=context, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("path", CLOSED)
def test_everything_but_the_operations_of_sites_is_closed(
    path: str, fed: Deployed, visitor: httpx.Client, findings: Findings
) -> None:
    key = pki.header(fed.home.read().sites["north"].key.encode())

    got = [visitor.post(path, headers=headers).status_code for headers in ({}, {"flwr-public-key": key})]

    findings.note("closed", str(got[0]))
    assert got == [403, 403]


@pytest.mark.parametrize("target", TRICKS)
def test_spelling_a_path_in_another_way_opens_nothing(target: str, fed: Deployed, findings: Findings) -> None:
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    with (
        socket.create_connection(("localhost", fed.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as s,
    ):
        s.sendall(f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        status = s.recv(4096).split()[1].decode()

    findings.note("paths", status)
    assert status in ("400", "403", "404")


def test_held_connections_keep_no_site_out(fed: Deployed, visitor: httpx.Client, findings: Findings) -> None:
    held = [socket.create_connection(("127.0.0.1", fed.port)) for _ in range(600)]
    key = pki.header(fed.home.read().sites["north"].key.encode())
    try:
        time.sleep(4)  # Strangers have three seconds.
        began = time.monotonic()
        answer = visitor.get("/health", headers={"flwr-public-key": key})
        seconds = time.monotonic() - began
    finally:
        for one in held:
            one.close()

    findings.note("held", f"{answer.status_code} after {seconds:.2f} s")
    assert answer.status_code == 200
    assert seconds < 1


def test_connections_that_show_a_public_key_keep_no_site_out(
    fed: Deployed, visitor: httpx.Client, findings: Findings
) -> None:
    """More than all sites have places for. Each sends a request without a signature, and then waits."""
    keys = {name: pki.header(site.key.encode()) for name, site in fed.home.read().sites.items()}
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    head = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\nflwr-public-key: {keys['north']}\r\n"
    request = (head + "content-length: 0\r\n\r\n").encode()
    held = []
    try:
        for _ in range(400):
            with suppress(OSError):  # Beyond the places of the key, connections have the few places of strangers.
                one = context.wrap_socket(
                    socket.create_connection(("127.0.0.1", fed.port)), server_hostname="localhost"
                )
                one.sendall(request)
                if one.recv(4096):
                    held.append(one)
        time.sleep(4)  # Strangers have three seconds.
        answers = [visitor.get("/health", headers={"flwr-public-key": key}).status_code for key in keys.values()]
    finally:
        for one in held:
            one.close()

    findings.note("held-key", f"{len(held)} held, {answers.count(200)} of {len(keys)} sites answered")
    assert answers == [200] * len(keys)
