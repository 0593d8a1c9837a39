"""Weighted means of uploads: of models, and of tables with a row for each class."""

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
    replies: Iterable[Any], field: str, weight: str, around: Tensor, equally: bool = False
) -> tuple[Tensor, Tensor]:
    """Average class tables over clients. Under a rule that guards ``field``, every class is a point of its own.

    Args:
        replies: replies or uploads with a table [C, d] in ``field`` and the clients' rows of each class [C] in
            ``weight``; see :func:`mean` for the policy that they carry.
        field: the field of the tables.
        weight: the field of the clients' rows.
        around: the server's table [C, d], from which clipping measures.
        equally: whether all clients that have rows of a class count alike.

    Returns:
        The means [C, d], 0 for a class without rows, and the sums of the weights [C].
    """

    policy = policy_of(replies)

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        for up in _uploads(replies, policy):
            n = getattr(up, weight)
            yield getattr(up, field), (n > 0).double() if equally else n.double()

    if policy.guard is not None and policy.guards(field):
        policy.guard.applied(field, weight)
        return guarded_table(policy.guard, tables(), around)
    total, mass, held = Sum(policy.fixed), Sum(policy.fixed), torch.zeros(len(around))
    for means, w in tables():
        total.add(w[:, None] * means.double())
        mass.add(w)
        held += w > 0
    alone = (held == 1).nonzero().flatten().tolist()
    if alone:
        policy.note(
            "alone", f"of {len(alone)} classes, such as {alone[0]}, the sum is what the only client that holds it sent."
        )
    return (total.value() / mass.value().clamp(min=1)[:, None]).float(), mass.value()


HANDFUL = 2**20  # bytes of uploads that a mean may hold


def mean(replies: Iterable[Any], field: str, weight: str | None = None, around: Params | None = None) -> Any:
    """Average one field of uploads, of which one is held at a time, or a few small ones.

    The replies that ``aggregate`` gets carry the policy of the round. Under ``--robust``, a rule that holds all uploads
    takes the place of the mean if the method declares the field in ``guards``. With ``--sums fixed``, sums are exact
    and numbers are rounded to 2^-24 first. An ``aggregate`` that changes replies before their mean hands the policy on
    by ``with_policy_of(replies, changed)``.

    Args:
        replies: the replies that ``aggregate`` gets, or replies or uploads made by ``with_policy_of`` or ``Replies``.
        field: the field to average.
        weight: the field that clients count by; None if all count alike.
        around: what clients started from, for a rule that measures updates; None for the field of that name in the
            server's state.

    Returns:
        Params for a field of Params, and a Tensor for a field that is a Tensor. Sums are kept in double precision, so
        that one upload comes back unchanged; integers (counters) take the largest.

    Raises:
        ValueError: if there are no uploads.
        AtollError: if the stream carries no policy.
    """
    policy = policy_of(replies)
    uploads = _uploads(replies, policy)
    if policy.guard is not None and policy.guards(field):
        return guarded_mean(policy.guard, policy.server, uploads, field, weight, around)
    count, mass, like, counters = 0, Sum(policy.fixed), Params(), Params()
    sums: defaultdict[str, Sum] = defaultdict(lambda: Sum(policy.fixed))
    for few in _handfuls(uploads, field):
        values, *weights = stack_fields(few, field, *([weight] if weight else []))
        rows = _named(values, field)
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
        raise ValueError(f"There is no mean of {field!r}: there are no uploads. Leave the state as it is in that case.")
    if count == 1:
        policy.note("one", f"a round had one client, so the sum of {field} is what that client sent.")
    means = {name: total.value().div_(mass.value()).to(like[name].dtype) for name, total in sums.items()}
    averaged = like | means | counters
    return averaged if isinstance(values, dict) else averaged[field]


def _uploads(replies: Iterable[Any], policy: AggregationPolicy) -> Iterable[Any]:
    """Return the uploads of replies, and let a robust rule notice their fields."""
    uploads = (item.upload if isinstance(item, Reply) else item for item in replies)
    return uploads if policy.guard is None else policy.guard.notice(uploads)


def _named(value: Params | Tensor, field: str) -> Params:
    """A field as Params. A lone tensor of integers becomes one of numbers: only among weights are integers counters."""
    if isinstance(value, dict):
        return value
    return {field: value if value.is_floating_point() else value.float()}


def _handfuls(uploads: Iterable[Any], field: str) -> Iterator[list[Any]]:
    """As many uploads at a time as are small together: one by one, small models would be all overhead."""
    left = iter(uploads)
    few = list(islice(left, 1))
    size = sum([v.nbytes for upload in few for v in _named(getattr(upload, field), field).values()])
    few += islice(left, HANDFUL // max(size, 1))
    while few:
        yield few
        few = list(islice(left, len(few)))
