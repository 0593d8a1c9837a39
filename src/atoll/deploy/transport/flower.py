"""Carry frames over Flower, each as one array of bytes, which Flower sends in pieces."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import AtollError
from ...typing import ClientId
from ..flower_adapter.replies import Replies, Reply
from .base import Arrival, Request, Ticket
from .protocol import Frame, ProtocolError, pack, unpack
from .signatures import is_signed

RECORD = "atoll"
SIGNATURE = "signature"
POLL = 0.05  # seconds between two requests for replies, at first
MOST_POLL = 0.5
PATIENCE = 20  # A pause is at most this part of the time that has been waited, so that short rounds end at once.
NAME_BYTES = 2**12  # of a reply that names a site
LIFE = 7 * 86400.0  # seconds for which Flower keeps a message for a site

_PROJECT = """\
[project]
name = "atoll-run"
version = "{version}"
description = "A run of atoll. It holds no code and stays at the server, which uses the package installed there."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "atoll"

[tool.flwr.app.components]
serverapp = "atoll.deploy.server.app:app"
clientapp = "atoll.deploy.server.app:app"  # Flower asks for an entry; sites of Atoll run no app

[tool.flwr.app.config]
job = ""
"""


def write_app(folder: Path) -> Path:
    """Write the app of a run as Flower wants it: a description that names the installed package, without code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(version=__version__))
    return folder


def wrapped(data: bytes, signature: bytes = b"") -> Any:
    """Wrap a packed frame as the content of a Flower message, with the signature of a site if it is a reply."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    frame = ArrayRecord({RECORD: Array("uint8", (len(data),), RECORD, data)})
    return RecordDict({RECORD: frame, SIGNATURE: ConfigRecord({SIGNATURE: signature})})


def unwrapped(content: Any) -> bytes:
    """Return the packed frame in the content of a Flower message; no bytes, which are no frame, if there is none."""
    try:
        return bytes(content[RECORD][RECORD].data)
    except (KeyError, TypeError, AttributeError, IndexError):
        return b""


def signature_of(content: Any) -> bytes:
    """Return the signature in the content of a Flower message; no bytes if there is none."""
    try:
        return bytes(content[SIGNATURE][SIGNATURE])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return b""


class FlowerTransport:
    """The transport to sites behind a SuperLink.

    A site with a key is recognised by the key alone. A node with an unknown key is asked for its name, and may only be
    a site without a key, as in federations on one machine.

    Args:
        grid: Flower's interface to the nodes of a run.
        keys: public keys of the nodes (OpenSSH), by site; None for a site without a key.
        announce: called with the bytes that each site is about to be asked for, so that the gate lets them pass.
    """

    def __init__(
        self,
        grid: Any,
        keys: Mapping[ClientId, str | None],
        announce: Callable[[Mapping[ClientId, int]], None] = lambda sizes: None,
    ):
        self._grid = grid
        self._replies = Replies(grid)
        self._announce = announce
        self._keys = {site: key for site, key in keys.items() if key}
        self._by_key = {normal_key(key): site for site, key in self._keys.items()}
        self._keyless = keys.keys() - self._keys.keys()
        self._named: dict[int, ClientId] = {}  # nodes that have answered with a name
        self._asking: dict[Ticket, int] = {}  # nodes that were asked for their names
        self._nodes: dict[ClientId, int] = {}
        self._open: dict[Ticket, tuple[ClientId, int]] = {}  # site and most bytes of the reply

    def present(self) -> Collection[ClientId]:
        found: dict[ClientId, int] = {}
        nodes = list(self._grid.get_nodes())
        online = {node.node_id for node in nodes}
        self._named = {
            node: site for node, site in self._named.items() if node in online
        }  # A name may pass to another node.
        for node in nodes:
            site = self._by_key.get(bytes(node.public_key)) or self._named.get(node.node_id)
            if site is not None:
                found.setdefault(site, node.node_id)
            elif self._keyless and node.node_id not in self._asking.values():
                self._asking |= dict.fromkeys(
                    self._push({node.node_id: pack(Frame("name", {}))}).values(), node.node_id
                )
        self._nodes = found
        return found.keys()

    def send(self, requests: Mapping[ClientId, Request]) -> dict[ClientId, Ticket]:
        sites = {self._nodes[site]: site for site in requests if site in self._nodes}
        self._announce({site: requests[site].reply_bytes for site in sites.values()})
        tickets = self._push({node: requests[site].data for node, site in sites.items()})
        sent = {sites[node]: ticket for node, ticket in tickets.items()}
        self._open |= {ticket: (site, requests[site].reply_bytes) for site, ticket in sent.items()}
        return sent

    def receive(self, wait: float) -> list[Arrival]:
        began = time.monotonic()
        while True:
            limits = {ticket: most for ticket, (_, most) in self._open.items()}
            limits |= dict.fromkeys(self._asking, NAME_BYTES)
            pulled = self._replies.pull(limits) if limits else []
            arrivals = [arrival for reply in pulled if (arrival := self._read(reply))]
            waited = time.monotonic() - began
            if arrivals or waited >= wait:
                return arrivals
            time.sleep(POLL if self._replies.arriving else min(MOST_POLL, max(POLL, waited / PATIENCE)))

    def _push(self, frames: Mapping[int, bytes]) -> dict[int, Ticket]:
        from flwr.app import Message, MessageType

        # Pushed one by one, because large messages together could exceed the limit of one call.
        pushed = {
            node: list(self._grid.push_messages([Message(wrapped(data), node, MessageType.TRAIN, ttl=LIFE)]))
            for node, data in frames.items()
        }
        return {node: tickets[0] for node, tickets in pushed.items() if tickets and tickets[0]}

    def _read(self, reply: Reply) -> Arrival | None:
        """Return the arrival that a reply stands for; None for replies that only name a site."""
        ticket, data = reply.ticket, b"" if reply.code else unwrapped(reply.content)
        if ticket in self._asking:
            self._take_name(self._asking.pop(ticket), data)
            return None
        site, _ = self._open.pop(ticket)
        if reply.code:
            return Arrival(ticket, code=reply.code, reason=reply.reason)
        key = self._keys.get(site)
        if key and not is_signed(key, ticket, data, signature_of(reply.content)):
            return Arrival(ticket, code="failed", reason="A reply has no valid signature of the site.")
        return Arrival(ticket, data)

    def _take_name(self, node: int, data: bytes) -> None:
        with suppress(ProtocolError):
            name = unpack(data).head.get("site")
            if name in self._keyless and name not in self._named.values():
                self._named[node] = name


def normal_key(text: str) -> bytes:
    """Convert a public key from the form of ``ssh-keygen`` to that of Flower."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
        return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except ValueError as reason:
        raise AtollError(f"{text[:40]!r} is not a public key in OpenSSH's form.") from reason
