"""Addresses of servers: host and port, and the loopback."""

import socket
from typing import Any

import pytest

from atoll.deploy.addresses import is_loopback, join, split
from atoll.errors import AtollError


def test_addresses_are_split_and_joined_or_refused() -> None:
    assert split("server.example.org:8443") == ("server.example.org", 8443)
    assert split("[::1]:80") == ("::1", 80)
    assert join(*split("[::1]:80")) == "[::1]:80"
    for wrong in ("server", "server:", ":80", "https://server:80", "server:0", "server:70000", "a b:80"):
        with pytest.raises(AtollError, match="HOST:PORT"):
            split(wrong)


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.8.8", True), ("0.0.0.0", False), ("::", False),
     ("10.1.2.3", False), ("no-such-host.invalid", False), ("host-without-address.invalid", False)],
)  # fmt: skip
def test_is_loopback_for_addresses_of_this_machine_only(
    host: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host == "no-such-host.invalid":  # without asking any name server

        def fail(*_: Any) -> Any:
            raise socket.gaierror

        monkeypatch.setattr(socket, "getaddrinfo", fail)
    if host == "host-without-address.invalid":
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert is_loopback(host) is inside
