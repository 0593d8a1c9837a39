"""Where client states live between rounds: in memory, or on disk behind a bounded cache."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from ..core.payloads import payload
from ..core.serialization import OWN, decode, digest, encode
from ..typing import ClientId
from ..utils.files import write

_SUFFIX, _DRAFT = ".safetensors", ".draft"
_LONGEST = 200  # of a file's name; file systems stop at 255


@payload
class Kept:
    """In place of a client's state, where the client keeps that itself: which one is meant."""

    round: int  # the exchange that it came of
    phase: int
    digest: str


def state_digest(state: Any) -> str:
    """SHA-256 of a state's canonical bytes, wherever they are."""
    return state.digest if isinstance(state, Kept) else digest(state)


class Store(Protocol):
    """A client that has never taken part has no entry, and costs nothing.

    What is put counts at once, and until it is kept it can be dropped: a round that breaks off leaves no trace.
    """

    def get(self, i: ClientId) -> Any | None: ...
    def put(self, i: ClientId, state: Any) -> None: ...
    def keep(self) -> None: ...
    def drop(self) -> None: ...
    def clear(self) -> None: ...
    def __iter__(self) -> Iterator[ClientId]: ...


@dataclass(frozen=True)
class RunStores:
    """The states of all clients of a run.

    Args:
        clients: what each client keeps.
        server_side: what the server keeps of each client, for methods that do so.
    """

    clients: Store
    server_side: Store

    def keep(self) -> None:
        """Keep all states that were put since the last call."""
        self.clients.keep()
        self.server_side.keep()

    def drop(self) -> None:
        """Forget all states that were put since they were kept last."""
        self.clients.drop()
        self.server_side.drop()

    def clear(self) -> None:
        """Remove all states."""
        self.clients.clear()
        self.server_side.clear()


class MemoryStore:
    """Keeps states in memory."""

    def __init__(self) -> None:
        self._kept: dict[ClientId, Any] = {}
        self._drafts: dict[ClientId, Any] = {}

    def get(self, i: ClientId) -> Any | None:
        return self._drafts.get(i, self._kept.get(i))

    def put(self, i: ClientId, state: Any) -> None:
        self._drafts[i] = state

    def keep(self) -> None:
        self._kept |= self._drafts
        self._drafts.clear()

    def drop(self) -> None:
        self._drafts.clear()

    def clear(self) -> None:
        self._kept.clear()
        self._drafts.clear()

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._kept | self._drafts))


class DiskStore:
    """One file per client, written at once; the latest few states also stay in memory.

    It serves one process: what survives that process is in the checkpoints.
    """

    def __init__(self, folder: Path, kind: type[Any], cache: int = 32):
        self._folder, self._kind, self._room = folder, kind, max(1, cache)
        self._recent: OrderedDict[ClientId, Any] = OrderedDict()
        self._drafts: set[ClientId] = set()
        self._long: dict[str, ClientId] = {}  # names that no file could bear, by what stands for them
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, i: ClientId) -> Any | None:
        if i not in self._recent:
            path = self._draft(i) if i in self._drafts else self._path(i)
            if not path.exists():
                return None
            self._remember(i, decode(self._kind, path.read_bytes(), OWN))
        self._recent.move_to_end(i)
        return self._recent[i]

    def put(self, i: ClientId, state: Any) -> None:
        self._drafts.add(i)  # first, so that half a file can be dropped too
        write(self._draft(i), encode(state), os.O_TRUNC)
        self._remember(i, state)

    def keep(self) -> None:
        for i in self._drafts:
            self._draft(i).replace(self._path(i))
        self._drafts.clear()

    def drop(self) -> None:
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
        kept = (path.name.removesuffix(_SUFFIX) for path in self._folder.glob("*" + _SUFFIX))
        return iter(sorted({self._long.get(name) or unquote(name) for name in kept} | self._drafts))

    def _remember(self, i: ClientId, state: Any) -> None:
        self._recent[i] = state
        self._recent.move_to_end(i)
        while len(self._recent) > self._room:
            self._recent.popitem(last=False)

    def _draft(self, i: ClientId) -> Path:
        return self._path(i).with_suffix(_DRAFT)

    def _path(self, i: ClientId) -> Path:
        # A dot in a client's name would be read as a suffix, a slash as a folder.
        name = quote(i, safe="").replace(".", "%2E")
        if len(name) > _LONGEST:
            name = sha256(name.encode()).hexdigest()
            self._long[name] = i
        return self._folder / f"{name}{_SUFFIX}"
