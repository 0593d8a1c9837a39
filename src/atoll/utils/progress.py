"""Report the progress of long loops to an observer, such as the progress bar of a command.

The observer is set by a context variable: loops deep in the package report to it without passing it along, and nothing
is reported, nor slowed down, when no observer is set.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Observer = Callable[[str, int, int], None]  # (name of the loop, items done, items in all)

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def observed(by: Observer) -> Iterator[None]:
    """Report the progress of loops inside the context to ``by``."""
    before = _observer.set(by)
    try:
        yield
    finally:
        _observer.reset(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Draw no progress bars inside the context."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


def is_quiet() -> bool:
    """Return True inside :func:`quiet`."""
    return _quiet.get()


def silent(done: int, line: object) -> None:
    """Show nothing of a run: a watch for callers that give none."""


def track(what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items unchanged and report each one to the observer, if one is set.

    Args:
        what: name of the loop, shown beside the bar.
        items: what to iterate over.
        total: number of items.
    """
    observer = _observer.get()
    return iter(items) if observer is None else _tracking(observer, what, items, total)


def _tracking(observer: Observer, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    observer(what, 0, total)
    for done, item in enumerate(items, 1):
        observer(what, done, total)
        yield item
