"""Carry frames over Flower, each as one array of bytes, which Flower sends in pieces."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import AtollError
from ...typing import ClientId
from ..flower_adapter.replies import Replies, Reply
from .base import Arrival, Request, Ticket
from .signatures import is_signed

RECORD = "atoll"
SIGNATURE = "signature"
POLL = 0.05  # seconds between two requests for replies, at first
MOST_POLL = 0.5
PATIENCE = 20  # A pause is at most this part of the time that has been waited, so that short rounds end at once.
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
    """The transport to sites behind a SuperLink. A site is recognised by its key, and its replies by their signature.

    Args:
        grid: Flower's interface to the nodes of a run.
        keys: public keys of the sites (OpenSSH).
        announce: called with the bytes that each site is about to be asked for, so that the gate lets them pass.
    """

    def __init__(
        self,
        grid: Any,
        keys: Mapping[ClientId, str],
        announce: Callable[[Mapping[ClientId, int]], None] = lambda sizes: None,
    ):
        self._grid = grid
        self._replies = Replies(grid)
        self._announce = announce
        self._keys = keys
        self._by_key = {normal_key(key): site for site, key in keys.items()}
        self._nodes: dict[ClientId, int] = {}
        self._open: dict[Ticket, tuple[ClientId, int]] = {}  # site and most bytes of the reply

    def present(self) -> Collection[ClientId]:
        nodes = {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}
        self._nodes = {site: nodes[key] for key, site in self._by_key.items() if key in nodes}
        return self._nodes.keys()

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
            pulled = self._replies.pull(limits) if limits else []
            arrivals = [self._read(reply) for reply in pulled]
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

    def _read(self, reply: Reply) -> Arrival:
        site, _ = self._open.pop(reply.ticket)
        if reply.code or reply.reason:
            return Arrival(reply.ticket, code=reply.code, reason=reply.reason)
        data = unwrapped(reply.content)
        if not is_signed(self._keys[site], reply.ticket, data, signature_of(reply.content)):
            return Arrival(reply.ticket, reason="A reply has no valid signature of the site.")
        return Arrival(reply.ticket, data)


def normal_key(text: str) -> bytes:
    """Convert a public key from the form of ``ssh-keygen`` to that of Flower."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
        return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except (ValueError, UnsupportedAlgorithm) as reason:
        raise AtollError(f"{text[:40]!r} is not a public key in OpenSSH's form.") from reason
