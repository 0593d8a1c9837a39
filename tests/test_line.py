"""What two processes hand each other through memory that they share."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from atoll.backends import line as shared
from atoll.backends.line import LEAST, Line, Place, line


class Parcel(NamedTuple):
    name: str
    first: bytes | None
    second: bytes = b""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Line, Line]]:
    """Both in this process, with room for ten parcels of the least size."""
    monkeypatch.setattr(shared, "SIZE", 10 * LEAST)
    here, there = line()
    yield here, there
    here.close()
    there.pipe.close()


def through_the_pipe(end: Line) -> Any:
    """The next message as the pipe has it."""
    return end.pipe.recv()


def large(character: bytes, times: int = 1) -> bytes:
    return character * LEAST * times


def test_what_is_large_lies_in_memory_and_all_else_goes_through_the_pipe(ends: tuple[Line, Line]) -> None:
    here, there = ends
    here.send(Parcel("a", large(b"x"), b"small"))
    assert through_the_pipe(there) == Parcel("a", Place(0, LEAST), b"small")  # type: ignore[arg-type]


def test_what_was_sent_is_received(ends: tuple[Line, Line]) -> None:
    here, there = ends
    for message in (Parcel("a", large(b"x"), large(b"y", 2)), Parcel("b", None, b"small"), None, 7):
        here.send(message)
        assert there.receive() == message


def test_messages_lie_behind_each_other_until_they_are_answered(ends: tuple[Line, Line]) -> None:
    """Both are sent before either is read; after an answer there is room from the start again."""
    here, there = ends
    first, second = Parcel("a", large(b"x", 2)), Parcel("b", large(b"y", 3))
    here.send(first)
    here.send(second)
    assert (there.receive(), there.receive()) == (first, second)
    there.send(Parcel("c", large(b"z", 9)))
    assert here.receive() == Parcel("c", large(b"z", 9))
    here.send(Parcel("d", large(b"w")))
    assert through_the_pipe(there).first == Place(0, LEAST)


def test_what_finds_no_room_goes_through_the_pipe(ends: tuple[Line, Line]) -> None:
    here, there = ends
    message = Parcel("a", large(b"x", 8), large(b"y", 3))
    here.send(message)
    assert through_the_pipe(there) == Parcel("a", Place(0, 8 * LEAST), message.second)  # type: ignore[arg-type]


def test_a_copy_is_received_which_later_messages_leave_alone(ends: tuple[Line, Line]) -> None:
    here, there = ends
    here.send(Parcel("a", large(b"x")))
    received = there.receive()
    there.send(Parcel("b", large(b"y")))
    assert received.first == large(b"x")
