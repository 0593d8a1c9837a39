"""Carry the replies of a round together with the policy by which the server combines them."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from ..errors import AtollError
from .payloads import Params

T = TypeVar("T")


class Replies(Generic[T]):
    """A stream of replies or uploads that carries the policy of the round.

    Functions of ``atoll.aggregation`` read the policy: a robust rule in place of means, or sums in fixed point.

    Args:
        items: the replies, read once if they are an iterator.
        policy: an ``AggregationPolicy``; None for plain means in double precision.
    """

    def __init__(self, items: Iterable[T], policy: Any = None):
        self._items = items
        self.policy = policy

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)


class Reports(list[Params]):
    """Reports of clients' regularisers that carry the policy of the round; see :class:`Replies`.

    Args:
        reports: the reports.
        like: replies or reports whose policy is carried on; None for sums in double precision.
    """

    def __init__(self, reports: Iterable[Params], like: Iterable[Any] | None = None):
        super().__init__(reports)
        self.policy = None if like is None else carried_policy(like)


def carried_policy(items: Iterable[Any]) -> Any:
    """Return the policy that replies or reports carry, None for plain means.

    Raises:
        AtollError: for a stream that carries no policy: a robust rule must not be lost on the way to a mean.
    """
    if not isinstance(items, Replies | Reports):
        raise AtollError(
            f"A {type(items).__name__} does not say how the server combines uploads. Hand over the replies that "
            "aggregate() gets, as in mean(replies, 'params'); if it changes them first, with_policy_of(replies, "
            "changed); outside of aggregate(), Replies(uploads)."
        )
    return items.policy


def with_policy_of(replies: Iterable[Any], items: Iterable[T]) -> Replies[T]:
    """Return ``items`` with the policy of ``replies``, for an ``aggregate`` that changes replies before their mean."""
    return Replies(items, carried_policy(replies))
