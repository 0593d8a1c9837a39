"""Average uploads with weights: models, and tables with a row for each class."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..core.payloads import Params
from ..core.task import Reply
from ..core.tree import stack_fields
from .fixed_point import Sum
from .policy import AggregationPolicy, policy_of
from .robust import guarded_mean, guarded_table


def table_mean(
    replies: Iterable[object], field: str, weight: str, around: Tensor, equally: bool = False
) -> tuple[Tensor, Tensor]:
    """Average class tables over clients. A robust rule that guards ``field`` treats each class separately.

    Args:
        replies: replies or uploads with a table [C, d] in ``field`` and the clients' rows of each class [C] in
            ``weight``; see :func:`mean` for the policy that they carry.
        field: the field of the tables.
        weight: the field of the clients' rows.
        around: the server's table [C, d], the centre for a rule that clips.
        equally: give all clients that have rows of a class the same weight.

    Returns:
        The means [C, d], 0 for a class without rows, and the sums of the weights [C].

    Raises:
        AtollError: if ``replies`` carry no policy.
    """
    policy = policy_of(replies)

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        for up in _uploads(replies, policy):
            n = getattr(up, weight)
            yield getattr(up, field), (n > 0).double() if equally else n.double()

    if policy.guard is not None and policy.guards(field):
        policy.guard.record_use(field, weight)
        return guarded_table(policy.guard, tables(), around)
    total = Sum(policy.fixed)
    mass = Sum(policy.fixed)
    held = torch.zeros(len(around))
    for means, w in tables():
        total.add(w[:, None] * means.double())
        mass.add(w)
        held += w > 0
    alone = (held == 1).nonzero().flatten().tolist()
    if alone:
        policy.note(
            "alone",
            f"{len(alone)} classes, such as {alone[0]}, are held by one client each, so their sum is its upload.",
        )
    return (total.value() / mass.value().clamp(min=1)[:, None]).float(), mass.value()


CHUNK_BYTES = 2**20  # bytes of uploads that a mean holds at a time


def mean(replies: Iterable[object], field: str, weight: str | None = None, around: Params | None = None) -> Any:
    """Average one field of uploads. Only one upload, or a few small ones, are in memory at a time.

    The replies that ``aggregate`` gets carry the policy of the round. Under ``--robust``, a rule that holds all uploads
    takes the place of the mean if the method declares the field in ``guards``. With ``--sums fixed``, sums are exact
    and numbers are rounded to 2^-24 first. An ``aggregate`` that changes replies before their mean hands the policy on
    by ``with_policy_of(replies, changed)``.

    Args:
        replies: the replies that ``aggregate`` gets, or replies or uploads made by ``with_policy_of`` or ``Replies``.
        field: the field to average.
        weight: the field with the clients' weights; None for equal weights.
        around: what clients started from, for a rule that measures updates; None for the field of that name in the
            server's state.

    Returns:
        Params for a field of Params, and a Tensor for a field that is a Tensor. Sums are kept in double precision, so
        that the mean of one upload is that upload. Integers (counters) take the largest value.

    Raises:
        ValueError: if there are no uploads.
        AtollError: if ``replies`` carry no policy.

    Example:
        >>> params = mean(replies, "params", weight="n")
    """
    policy = policy_of(replies)
    uploads = _uploads(replies, policy)
    if policy.guard is not None and policy.guards(field):
        return guarded_mean(policy.guard, policy.server, uploads, field, weight, around)
    count = 0
    mass = Sum(policy.fixed)
    like = Params()
    counters = Params()
    sums: defaultdict[str, Sum] = defaultdict(lambda: Sum(policy.fixed))
    for few in _chunks(uploads, field):
        values, *weights = stack_fields(few, field, *([weight] if weight else []))
        rows = _to_params(values, field)
        like = like or {name: v[0] for name, v in rows.items()}
        w = weights[0].double() if weight else torch.ones(len(few)).double()
        mass.add_all(w, torch.ones_like(w))
        for name, v in rows.items():
            if v.is_floating_point():
                sums[name].add_all(v, w)
            else:
                counters[name] = torch.maximum(counters.get(name, v[0]), v.amax(0))
        count += len(few)
    if not count:
        raise ValueError(
            f"There is no mean of {field!r}, because there are no uploads. Return the server's state unchanged instead."
        )
    if count == 1:
        policy.note("one", f"a round had one client, so the sum of {field} is that client's upload.")
    means = {name: total.value().div_(mass.value()).to(like[name].dtype) for name, total in sums.items()}
    averaged = like | means | counters
    return averaged if isinstance(values, dict) else averaged[field]


def _uploads(replies: Iterable[object], policy: AggregationPolicy) -> Iterable[object]:
    """Return the uploads of replies. A robust rule records their fields for its notes."""
    uploads = (item.upload if isinstance(item, Reply) else item for item in replies)
    return uploads if policy.guard is None else policy.guard.record_fields(uploads)


def _to_params(value: Params | Tensor, field: str) -> Params:
    """Return a field as Params. A single integer tensor becomes float: only in Params are integers counters."""
    if isinstance(value, dict):
        return value
    return {field: value if value.is_floating_point() else value.float()}


def _chunks(uploads: Iterable[object], field: str) -> Iterator[list[object]]:
    """Yield lists of about ``CHUNK_BYTES`` of uploads: one by one, small models would cost mostly overhead."""
    left = iter(uploads)
    few = list(islice(left, 1))
    size = sum([v.nbytes for upload in few for v in _to_params(getattr(upload, field), field).values()])
    few += islice(left, CHUNK_BYTES // max(size, 1))
    while few:
        yield few
        few = list(islice(left, len(few)))
