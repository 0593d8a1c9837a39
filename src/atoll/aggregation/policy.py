"""How a server combines the uploads of a round."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.replies import carried_policy
from .fixed_point import Fixed, Sum
from .robust import RobustAggregation


@dataclass(frozen=True)
class AggregationPolicy:
    """A robust rule in place of means, sums in fixed point, or neither.

    Args:
        guard: the robust rule, and the fields that it averages.
        fixed: marks that sums are taken in fixed point.
        server: the state of the server before the round, from which rules measure updates.
    """

    guard: RobustAggregation | None = None
    fixed: Fixed | None = None
    server: Any = None

    def __post_init__(self) -> None:
        if self.guard is not None:
            self.guard.used = True

    def guards(self, field: str) -> bool:
        """Return True if a robust rule averages ``field``."""
        return self.guard is not None and field in self.guard.declared

    def note(self, kind: str, words: str) -> None:
        """Tell the user something about sums in fixed point, if sums are fixed."""
        if self.fixed is not None:
            self.fixed.note(kind, words)


PLAIN = AggregationPolicy()


def policy_of(replies: Iterable[Any]) -> AggregationPolicy:
    """Return the policy that replies or reports carry.

    Raises:
        AtollError: for a stream that carries none; see :func:`~atoll.core.replies.carried_policy`.
    """
    return carried_policy(replies) or PLAIN


def sum_for(replies: Iterable[Any]) -> Sum:
    """Return an empty sum for tensors of replies, in fixed point if their policy says so."""
    return Sum(policy_of(replies).fixed)
