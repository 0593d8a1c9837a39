"""Limit the time that a request of the server may take at a site."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUp(BaseException):
    """Raised in the main thread after the time limit. No Exception: handlers of a method's errors must not take it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp in the main thread, between two operations of Python, unless the block ends in time.

    Epochs and rounds can be counted before a run begins. Other settings of methods prolong training as well, and this
    limit holds for all of them: without it, one request could occupy a site for ever.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
