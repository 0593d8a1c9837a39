"""Who is told of the steps within a round, or of a download: nobody, unless a command shows them to people."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Observer = Callable[[str, int, int], None]  # what is being done, how many of how many are done

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_hushed: ContextVar[bool] = ContextVar("hushed", default=False)


@contextmanager
def observed(by: Observer) -> Iterator[None]:
    before = _observer.set(by)
    try:
        yield
    finally:
        _observer.reset(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it nothing draws a bar."""
    before = _hushed.set(True)
    try:
        yield
    finally:
        _hushed.reset(before)


def is_quiet() -> bool:
    return _hushed.get()


def track(what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """The items as they are; the observer hears of each once it is there."""
    observer = _observer.get()
    return iter(items) if observer is None else _tracking(observer, what, items, total)


def _tracking(observer: Observer, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    observer(what, 0, total)
    for done, item in enumerate(items, 1):
        observer(what, done, total)
        yield item
