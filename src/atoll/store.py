"""Where client states live between rounds: in memory, or on disk behind a bounded cache."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from .core import ClientId
from .payload import payload
from .wire import decode, digest, encode

_SUFFIX = ".safetensors"


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
    """A client that has never taken part has no entry, and costs nothing."""

    def get(self, i: ClientId) -> Any | None: ...
    def put(self, i: ClientId, state: Any) -> None: ...
    def clear(self) -> None: ...
    def __iter__(self) -> Iterator[ClientId]: ...


class MemoryStore:
    def __init__(self) -> None:
        self._states: dict[ClientId, Any] = {}

    def get(self, i: ClientId) -> Any | None:
        return self._states.get(i)

    def put(self, i: ClientId, state: Any) -> None:
        self._states[i] = state

    def clear(self) -> None:
        self._states.clear()

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._states))


class DiskStore:
    """One file per client, written at once; the latest few states also stay in memory."""

    def __init__(self, folder: Path, kind: type[Any], cache: int = 32):
        self._folder, self._kind, self._room = folder, kind, max(1, cache)
        self._recent: OrderedDict[ClientId, Any] = OrderedDict()
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, i: ClientId) -> Any | None:
        if i not in self._recent:
            path = self._path(i)
            if not path.exists():
                return None
            self._remember(i, decode(self._kind, path.read_bytes()))
        self._recent.move_to_end(i)
        return self._recent[i]

    def put(self, i: ClientId, state: Any) -> None:
        path = self._path(i)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(encode(state))
        fresh.replace(path)
        self._remember(i, state)

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()
        self._recent.clear()

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in self._folder.glob("*" + _SUFFIX)))

    def _remember(self, i: ClientId, state: Any) -> None:
        self._recent[i] = state
        self._recent.move_to_end(i)
        while len(self._recent) > self._room:
            self._recent.popitem(last=False)

    def _path(self, i: ClientId) -> Path:
        # A dot in a client's name would be read as a suffix, a slash as a folder.
        return self._folder / f"{quote(i, safe='').replace('.', '%2E')}{_SUFFIX}"
