"""Define the aggregation policy of a round: plain means, a robust rule, or sums in fixed point."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.payloads import Payload
from ..core.replies import carried_policy
from .fixed_point import Fixed, Sum
from .robust import RobustAggregation


@dataclass(frozen=True)
class AggregationPolicy:
    """The way in which a server combines uploads: by a robust rule, in fixed point, or by plain means.

    Args:
        guard: the robust rule with the fields that it averages; None for means.
        fixed: given if sums are taken in fixed point.
        server: the server's state before the round, from which rules measure updates.
    """

    guard: RobustAggregation | None = None
    fixed: Fixed | None = None
    server: Payload | None = None

    def __post_init__(self) -> None:
        if self.guard is not None:
            self.guard.used = True

    def guards(self, field: str) -> bool:
        """Return True if a robust rule averages ``field``."""
        return self.guard is not None and field in self.guard.declared

    def note(self, kind: str, words: str) -> None:
        """Report a note about sums in fixed point, if the run uses them."""
        if self.fixed is not None:
            self.fixed.note(kind, words)


PLAIN = AggregationPolicy()


def policy_of(replies: Iterable[object]) -> AggregationPolicy:
    """Return the policy that replies or reports carry.

    Raises:
        AtollError: if they carry none; see :func:`~atoll.core.replies.carried_policy`.
    """
    return carried_policy(replies) or PLAIN


def sum_for(replies: Iterable[object]) -> Sum:
    """Return an empty sum for tensors of replies, in fixed point if the policy of the replies says so."""
    return Sum(policy_of(replies).fixed)
