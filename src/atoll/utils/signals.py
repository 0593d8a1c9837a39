"""Handle requests to stop: SIGTERM works like Ctrl-C, and neither interrupts a step that must finish whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


class Ended(BaseException):
    """Raised when the process receives a signal to end."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise :class:`Ended` on the first SIGTERM, SIGHUP or Ctrl-C inside the context.

    Later signals are ignored, so that the clean-up is not interrupted.
    """
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
    """Raised by SIGTERM or Ctrl-C inside :func:`stoppable`; ``code`` is the exit code that shells expect."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class _Requests:
    """The request to stop, if there is one. Signals belong to the process, so there is one instance."""

    def __init__(self) -> None:
        self.asked: int | None = None  # number of the first signal; later ones change nothing
        self.held = 0  # depth of nested :func:`uninterrupted` blocks
        self.deferred = 0  # depth of nested :func:`deferred` blocks

    def receive(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        if self.asked is None:
            self.asked = number
            if not self.deferred:
                self.raise_if_requested()

    def raise_if_requested(self) -> None:
        """Raise :class:`Stopped` if a signal came, unless a block must finish first."""
        if self.asked is not None and not self.held:
            raise Stopped(self.asked)


_requests = _Requests()
_USUAL: dict[signal.Signals, Handler] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise :class:`Stopped` on the first SIGTERM or Ctrl-C inside the context.

    Handlers that the calling program has installed stay in place.
    """
    mine = [s for s, usual in _USUAL.items() if signal.getsignal(s) is usual]
    if threading.current_thread() is not threading.main_thread():
        mine = []  # signals are for the main thread alone
    for s in mine:
        signal.signal(s, _requests.receive)
    try:
        yield
    finally:
        for s in mine:
            signal.signal(s, _USUAL[s])
        if mine:
            _requests.asked = None


def stop_if_requested() -> None:
    """Raise :class:`Stopped` if a signal came, unless a block must finish first. To be called between steps of work."""
    _requests.raise_if_requested()


def find_request() -> Stopped | None:
    """Return the request to stop that has come inside :func:`stoppable`, if there is one."""
    return None if _requests.asked is None else Stopped(_requests.asked)


@contextmanager
def deferred() -> Iterator[None]:
    """Let a request to stop take effect at :func:`stop_if_requested` and at the end of the block, nowhere else.

    For code of libraries that an exception at any moment leaves in disorder, such as the way into and out of vmap.
    """
    _requests.deferred += 1
    try:
        yield
    finally:
        _requests.deferred -= 1
    if not _requests.deferred:
        _requests.raise_if_requested()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the block finish before a request to stop takes effect."""
    _requests.held += 1
    try:
        yield
    finally:
        _requests.held -= 1
    if not _requests.deferred:
        _requests.raise_if_requested()
