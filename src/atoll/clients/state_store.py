"""Store client states between rounds: in memory, or on disk with a bounded cache."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from ..core.payloads import Payload, payload
from ..core.serialization import OWN, decode, digest, encode
from ..typing import ClientId
from ..utils.files import write

_SUFFIX, _DRAFT = ".safetensors", ".draft"
_LONGEST = 200  # characters of a file's name; file systems allow 255


@payload
class RemoteState:
    """Reference to a state that a remote client keeps at its own site."""

    round: int  # the exchange that produced the state
    exchange: int
    digest: str


def state_digest(state: Payload) -> str:
    """Return the SHA-256 of a state's canonical bytes, also for a state that a remote client keeps."""
    return state.digest if isinstance(state, RemoteState) else digest(state)


class Store(Protocol):
    """States of clients. A client that has never taken part has no entry.

    ``get`` returns a state as soon as ``put`` has stored it. ``commit`` makes all states put since the last commit
    permanent, ``rollback`` discards them, so that an interrupted round changes nothing.
    """

    def get(self, i: ClientId) -> Any: ...
    def put(self, i: ClientId, state: Payload) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def clear(self) -> None: ...
    def __iter__(self) -> Iterator[ClientId]: ...


class MemoryStore:
    """Store states in memory."""

    def __init__(self) -> None:
        self._committed: dict[ClientId, Payload] = {}
        self._drafts: dict[ClientId, Payload] = {}

    def get(self, i: ClientId) -> Any:
        return self._drafts.get(i, self._committed.get(i))

    def put(self, i: ClientId, state: Payload) -> None:
        self._drafts[i] = state

    def commit(self) -> None:
        self._committed |= self._drafts
        self._drafts.clear()

    def rollback(self) -> None:
        self._drafts.clear()

    def clear(self) -> None:
        self._committed.clear()
        self._drafts.clear()

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._committed | self._drafts))


class DiskStore:
    """Store each client's state in a file of its own, and cache the most recently used states in memory.

    The files serve one process only; a resumed run reads its states from checkpoints.

    Args:
        folder: folder of the files, created if missing.
        kind: payload class of the states.
        cache: number of states in memory.
    """

    def __init__(self, folder: Path, kind: type[Payload], cache: int = 32):
        self._folder = folder
        self._kind = kind
        self._capacity = max(1, cache)
        self._recent: OrderedDict[ClientId, Any] = OrderedDict()
        self._drafts: set[ClientId] = set()
        self._long: dict[str, ClientId] = {}  # client names too long for a file, by the digest in the file's name
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, i: ClientId) -> Any:
        if i not in self._recent:
            path = self._draft(i) if i in self._drafts else self._path(i)
            if not path.exists():
                return None
            self._remember(i, decode(self._kind, path.read_bytes(), OWN))
        self._recent.move_to_end(i)
        return self._recent[i]

    def put(self, i: ClientId, state: Payload) -> None:
        # Register the draft before writing, so that a rollback also removes a partly written file.
        self._drafts.add(i)
        write(self._draft(i), encode(state), os.O_TRUNC)
        self._remember(i, state)

    def commit(self) -> None:
        for i in self._drafts:
            self._draft(i).replace(self._path(i))
        self._drafts.clear()

    def rollback(self) -> None:
        for i in self._drafts:
            self._draft(i).unlink(missing_ok=True)
            self._recent.pop(i, None)
        self._drafts.clear()

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()
        self._recent.clear()
        self._drafts.clear()

    def __iter__(self) -> Iterator[ClientId]:
        stored = (path.name.removesuffix(_SUFFIX) for path in self._folder.glob("*" + _SUFFIX))
        return iter(sorted({self._long.get(name) or unquote(name) for name in stored} | self._drafts))

    def _remember(self, i: ClientId, state: Payload) -> None:
        self._recent[i] = state
        self._recent.move_to_end(i)
        while len(self._recent) > self._capacity:
            self._recent.popitem(last=False)

    def _draft(self, i: ClientId) -> Path:
        return self._path(i).with_suffix(_DRAFT)

    def _path(self, i: ClientId) -> Path:
        # A dot in a client's name would start a suffix, and a slash a folder.
        name = quote(i, safe="").replace(".", "%2E")
        if len(name) > _LONGEST:
            name = sha256(name.encode()).hexdigest()
            self._long[name] = i
        return self._folder / f"{name}{_SUFFIX}"
