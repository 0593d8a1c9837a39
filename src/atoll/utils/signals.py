"""Being told to stop: SIGTERM is what Ctrl-C is, and neither of them cuts into the books of a run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


class Ended(BaseException):
    """Somebody asked this process to end."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, SIGHUP and Ctrl-C raise :class:`Ended` here, once; what follows cleans up in peace."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Ended

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopped(KeyboardInterrupt):
    """Somebody asked the process to stop; ``code`` is what it ends with, as shells count."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class _Requests:
    """Signals belong to the process, so there is one of these."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the first signal; later ones change nothing
        self.held = 0

    def note(self, number: int, _: Any) -> None:
        if self.asked is None:
            self.asked = number
            self.heed()

    def heed(self) -> None:
        if self.asked is not None and not self.held:
            raise Stopped(self.asked)


_requests = _Requests()
_USUAL: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it, SIGTERM and Ctrl-C raise :class:`Stopped`, once. Handlers of somebody else stay as they are."""
    mine = [s for s, usual in _USUAL.items() if signal.getsignal(s) is usual]
    if threading.current_thread() is not threading.main_thread():
        mine = []  # signals are for the main thread alone
    for s in mine:
        signal.signal(s, _requests.note)
    try:
        yield
    finally:
        for s in mine:
            signal.signal(s, _USUAL[s])
        if mine:
            _requests.asked = None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What is done here is done whole: a request to stop waits until its end."""
    _requests.held += 1
    try:
        yield
    finally:
        _requests.held -= 1
    _requests.heed()
