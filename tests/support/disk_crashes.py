"""Ends in the middle of things: everything stops, or one call fails, at a step that touches the disk."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STEPS = ("open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir")


class Crash(BaseException):
    """As if the process ended here."""


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def trouble_at(
    step: int,
    trouble: Callable[[], BaseException] = Crash,
    steps: tuple[str, ...] = STEPS,
    lasting: bool = False,
) -> Iterator[list[str]]:
    """Raise just before the given step that touches the disk, and at later ones if it lasts; gives the steps so far.

    A write has two steps: before it, and when half of it is on the disk.
    """
    done: list[str] = []

    def take(name: str) -> None:
        done.append(name)
        if len(done) == step + 1 or (lasting and len(done) > step):
            raise trouble()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            take(name)
            return real(*args, **options)

        return call

    def write(handle: int, data: Any) -> int:
        take("write")
        half = len(data) // 2
        written = os_write(handle, data[:half])
        take("half")
        return written + os_write(handle, data[half:])

    os_write = os.write
    with pytest.MonkeyPatch.context() as patch:
        for name in steps:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        patch.setattr(os, "write", write)
        yield done


def crash_points(act: Callable[[], None], prepare: Callable[[], None], stride: int = 1) -> Iterator[int]:
    """Prepare and act, and crash at each step in turn (or every few), until there is nothing left to crash."""
    for step in range(0, 2000, stride):
        prepare()
        with trouble_at(step) as done:
            try:
                act()
            except Crash:
                pass
            else:
                assert {"open", "write", "half", "fsync"} <= set(done)
                return
        yield step
    pytest.fail("this takes too many steps")
