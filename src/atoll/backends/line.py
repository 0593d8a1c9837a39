"""A pipe between two processes of one family that also share memory: bytes lie there, only their places are sent.

A pipe would copy what is large twice and in small portions, for which both ends must be awake at the same time. The
ends take turns. What was received is copied out at once; from then on its place is free, and the receiver, whose turn
it is now, writes from the start again. Until it is answered it may send several messages, one behind the other.

The pipe pickles what is around the bytes: both ends are this program, and nothing from elsewhere is unpickled.
"""

import mmap
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

SIZE = 2**28  # bytes of address space: pages that nothing was written to take no memory
LEAST = 2**12  # bytes that are worth the detour


class Place(NamedTuple):
    """Where bytes lie."""

    start: int
    stop: int


class Line:
    """One end."""

    def __init__(self, pipe: Connection, memory: mmap.mmap):
        self.pipe, self._memory = pipe, memory
        self._free = 0  # where nothing lies any more

    def send(self, message: Any) -> None:
        """A named tuple, or anything without bytes that are large."""
        if isinstance(message, tuple):
            message = type(message)(*map(self._put, message))
        self.pipe.send(message)

    def receive(self) -> Any:
        message = self.pipe.recv()
        self._free = 0
        return type(message)(*map(self._taken, message)) if isinstance(message, tuple) else message

    def close(self) -> None:
        self.pipe.close()
        self._memory.close()

    def _put(self, value: Any) -> Any:
        """The place of bytes that are large; they go through the pipe where there is no room for them."""
        if not isinstance(value, bytes) or len(value) < LEAST or self._free + len(value) > len(self._memory):
            return value
        place = Place(self._free, self._free + len(value))
        self._memory[slice(*place)] = value
        self._free = place.stop
        return place

    def _taken(self, value: Any) -> Any:
        return self._memory[slice(*value)] if isinstance(value, Place) else value


def line() -> tuple[Line, Line]:
    """Both ends: one for this process, one for a process that will be forked."""
    memory = mmap.mmap(-1, SIZE)
    here, there = get_context("fork").Pipe()
    return Line(here, memory), Line(there, memory)
