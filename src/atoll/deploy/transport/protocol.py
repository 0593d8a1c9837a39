"""Define the protocol between server and sites: frames of a small JSON header and raw bytes, without pickle.

A frame is ``ATL1``, the lengths of its two parts (4 and 8 bytes, big-endian), the header and the body. Bodies are
payloads as :func:`atoll.core.serialization.encode` makes them; the receiver decides which class a body must have.
This module does not import torch, because the process that passes messages of Flower to a site's worker needs none.
"""

import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from ...errors import AtollError
from ...utils.parsing import Json

VERSION = 5
MOST_HEAD = 1 << 20
MOST_BODY = 1 << 32
_MAGIC = b"ATL1"
_PREFIX = struct.Struct(">4sIQ")
_CHUNK = 1 << 20

# Reasons why a site gives no result, in the words of the server. A site sends the code alone: texts could leak data.
CODES = {
    "worker": "no answer from the worker there. Make sure that the site's client is running",
    "offline": "cannot be reached. Start the client there, or check the network",
    "silent": "no answer in time",
    "request": "could not read the request. Install the same version of atoll everywhere",
    "version": "has another version of atoll. Install the same one everywhere",
    "method": "does not have the method. A method of your own has to be listed under 'methods' in site.yaml there",
    "contract": "has the method with other settings, other payloads or other code. Install the same version everywhere",
    "model": "has a model of another form than the server expects",
    "data": "has samples of another form than the federation",
    "classes": (
        "has samples of a class that no site has named, because too few samples have it. List all classes at every "
        "site, such as 'rows.csv?classes=a,b,c'"
    ),
    "public": "has no public samples, or other ones than the server. Copy the server's file there",
    "run": "does not know the run",
    "state": "lacks the state that the run needs, or the state was changed there",
    "covariances": (
        "keeps covariances of features to itself, by its own rules. Start the run with --cov-source means, "
        "or with --min-class-count 10"
    ),
    "roles": (
        "keeps uploads to itself whose fields do not say what they hold, by its own rules. Declare a role for every "
        "field of the method's upload; the log there names the field"
    ),
    "rules": (
        "does not admit this by its own rules, which `atoll deploy rules` shows there. The log there says which rule"
    ),
    "statistics": (
        "keeps sums and categories of its columns, names of classes and sums of targets to itself, by its own rules. "
        "Start the run with --standardise site and --missing site, or --standardise no for numbers to predict, and "
        "declare categories and classes in a schema file"
    ),
    "budget": "has spent the privacy budget of this run",
    "failed": "failed in its part of the method. The log there says why",
}
PASSING = frozenset({"worker", "offline"})  # may pass without any action, so a request is sent again
AWAY = PASSING | {"silent"}


class ProtocolError(AtollError):
    """Raised for bytes that are not a frame."""


class Refusal(AtollError):
    """Raised for a request that a site refuses; ``code`` says why."""

    def __init__(self, code: str, reason: str = ""):
        super().__init__(reason or CODES[code])
        self.code = code


class Frame(NamedTuple):
    """A request or a reply."""

    kind: str
    head: Json
    body: bytes = b""

    @property
    def code(self) -> str | None:
        """Return the error code of a frame without content, or None."""
        return known_code(self.head.get("code")) if self.kind == "error" else None


def answers(run: str, site: str, round: int, exchange: int) -> Json:
    """Return the entries that identify an upload, so that it cannot pass for the answer to another request or site."""
    return {"run": run, "site": site, "round": round, "exchange": exchange}


def error(code: str) -> Frame:
    """Return an error frame."""
    return Frame("error", {"code": code})


def known_code(code: object) -> str:
    """Return the error code that a site sent if it is known, otherwise ``"failed"``."""
    return code if isinstance(code, str) and code in CODES else "failed"


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame; raise ProtocolError if it is too large."""
    head = json.dumps([frame.kind, frame.head], allow_nan=False, separators=(",", ":")).encode()
    if len(head) > MOST_HEAD or len(frame.body) > MOST_BODY:
        raise ProtocolError(f"A {frame.kind!r} frame of {len(head)} + {len(frame.body)} bytes is too large to be sent.")
    return _PREFIX.pack(_MAGIC, len(head), len(frame.body)) + head + frame.body


def unpack(data: bytes) -> Frame:
    """Return the frame of some bytes; raise ProtocolError if they are none."""
    head = _head_length(data)
    return _frame(data[_PREFIX.size : _PREFIX.size + head], data[_PREFIX.size + head :])


def _head_length(data: bytes) -> int:
    """Return the length of the header of some bytes; raise ProtocolError unless they are one whole frame."""
    if len(data) < _PREFIX.size:
        raise ProtocolError(f"{len(data)} bytes are no frame.")
    head, body = _lengths(data[: _PREFIX.size])
    if len(data) != _PREFIX.size + head + body:
        raise ProtocolError("A frame is cut short, or bytes follow it.")
    return head


def _lengths(prefix: bytes) -> tuple[int, int]:
    magic, head, body = _PREFIX.unpack(prefix)
    if magic != _MAGIC or head > MOST_HEAD or body > MOST_BODY:
        raise ProtocolError("These bytes are no frame, or the frame is too large.")
    return head, body


def _frame(head: bytes, body: bytes) -> Frame:
    try:
        kind, values = json.loads(head)
        return Frame(str(kind), dict(values), body)
    except (ValueError, TypeError, RecursionError) as reason:
        raise ProtocolError("The header of a frame is malformed.") from reason


# -- over a local socket ----------------------------------------------------------------------------------------------


def call(address: str | Path, data: bytes, timeouts: float | None = None) -> bytes:
    """Send a packed frame to the worker at a socket; return its packed reply or an error frame.

    Bytes that are no whole frame are not sent: the worker would wait for the rest.
    """
    try:
        _head_length(data)
    except ProtocolError:
        return pack(error("request"))
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError, ProtocolError):
        connection.settimeout(timeouts)
        connection.connect(str(address))
        connection.sendall(data)
        return receive(connection)
    return pack(error("worker"))


def receive(connection: socket.socket) -> bytes:
    """Receive one packed frame."""
    prefix = _exactly(connection, _PREFIX.size)
    return prefix + _exactly(connection, sum(_lengths(prefix)))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:  # Memory is taken for received bytes only, not for the announced size.
        piece = connection.recv(min(_CHUNK, size - len(data)))
        if not piece:
            raise ProtocolError("The other side closed the connection in the middle of a frame.")
        data += piece
    return bytes(data)
