"""Give a method a view of the states that the server keeps for all clients."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from ..errors import AtollError
from ..typing import ClientId

T = TypeVar("T")


class PerClient(Generic[T]):
    """The server's states of all clients that it has served so far, to be read. Each is loaded when it is asked for.

    Args:
        load: returns the state of a client, None if the server has not served that client yet.
        served: returns the clients that have a state, always in the same order.

    Example:
        >>> models = [states[i].params for i in states]
    """

    def __init__(self, load: Callable[[ClientId], T | None], served: Callable[[], Iterable[ClientId]]):
        self._load = load
        self._served = served

    def get(self, i: ClientId, default: T) -> T:
        """Return the state of client ``i``, or ``default`` if there is none yet."""
        found = self._load(i)
        return default if found is None else found

    def __getitem__(self, i: ClientId) -> T:
        found = self._load(i)
        if found is None:
            raise AtollError(
                f"The server has no state for client {i!r}: it has not served that client yet. Give a default, as in "
                "get(i, default), or let the method say why_closed() to new clients."
            )
        return found

    def __contains__(self, i: object) -> bool:
        return i in set(self._served())

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._served())

    def __len__(self) -> int:
        return len(list(self._served()))
