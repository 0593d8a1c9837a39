"""Ends in the middle of things: everything stops just before, or just after, a step that touches the disk."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STEPS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open")


class Crash(BaseException):
    """As if the process ended here."""


@contextmanager
def crash_at(step: int) -> Iterator[list[str]]:
    """End everything just before the given step that touches the disk; gives the steps so far."""
    done: list[str] = []

    def take(name: str) -> None:
        if len(done) == step:
            raise Crash
        done.append(name)

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            take(name)
            return real(*args, **options)

        return call

    def open_watched(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        handle = io_open(path, mode, *args, **options)
        if "w" in mode:  # the file is there, and nothing in it
            take("write")
        return handle

    io_open = io.open
    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        patch.setattr(io, "open", open_watched)
        yield done


def crash_points(act: Callable[[], None], prepare: Callable[[], None], stride: int = 1) -> Iterator[int]:
    """Prepare and act, and crash at each step in turn (or every few), until there is nothing left to crash."""
    for step in range(0, 200, stride):
        prepare()
        with crash_at(step) as done:
            try:
                act()
            except Crash:
                pass
            else:
                assert {"write", "fsync", "replace"} <= set(done)
                return
        yield step
    pytest.fail("this takes too many steps")
