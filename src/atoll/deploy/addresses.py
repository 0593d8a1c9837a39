"""Network addresses: host and port as text, and whether a host is this machine."""

import ipaddress
import socket

from ..errors import AtollError

PORT = 8443  # default port of a server


def join(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``; raise AtollError for any other text."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or any(c in host for c in "/ []"):
        raise AtollError(f"{address!r} is not an address: give HOST:PORT, such as server.example.org:{PORT}.")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return True if every address of a host belongs to this machine alone."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
