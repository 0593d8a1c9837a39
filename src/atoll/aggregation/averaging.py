"""Weighted means of uploads: of models, and of tables with a row for each class."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..core.payload import Params
from ..core.tree import stack_fields
from . import robust
from .fixed_point import Sum, note
from .robust import _now, guarded_table, guards, noticed


def table_mean(
    uploads: Iterable[Any], field: str, weight: str, around: Tensor, equally: bool = False
) -> tuple[Tensor, Tensor]:
    """Average class tables over clients. Under a rule that guards ``field``, every class is a point of its own.

    Args:
        uploads: uploads with a table [C, d] in ``field`` and the clients' rows of each class [C] in ``weight``.
        around: the server's table [C, d], from which clipping measures.
        equally: whether all clients that have rows of a class count alike.

    Returns:
        The means [C, d], 0 for a class without rows, and the sums of the weights [C].
    """

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        for up in noticed(uploads):
            n = getattr(up, weight)
            yield getattr(up, field), (n > 0).double() if equally else n.double()

    if guards(field):
        _now()[0].applied(field, weight)
        return guarded_table(tables(), around)
    total, mass, held = Sum(), Sum(), torch.zeros(len(around))
    for means, w in tables():
        total.add(w[:, None] * means.double())
        mass.add(w)
        held += w > 0
    alone = (held == 1).nonzero().flatten().tolist()
    if alone:
        note(
            "alone", f"of {len(alone)} classes, such as {alone[0]}, the sum is what the only client that holds it sent."
        )
    return (total.value() / mass.value().clamp(min=1)[:, None]).float(), mass.value()


HANDFUL = 2**20  # bytes of uploads that a mean may hold


def mean(uploads: Iterable[Any], field: str, weight: str | None = None, around: Params | None = None) -> Any:
    """Weighted mean of one field over a stream of uploads, of which it holds one at a time, or a few small ones.

    Returns Params for a field of Params and a Tensor for a field that is a Tensor; raises ValueError without uploads.
    Sums are kept in double precision, so one upload comes back unchanged; integers (counters) take the largest.
    While a server aggregates under ``--robust``, a rule that holds all uploads takes its place if the method declares
    the field in ``guards``. One that measures updates does so ``around`` what clients started from: by default, the
    field of that name in the server's state.
    With ``--sums fixed`` sums are exact, but numbers are rounded to 2^-24 first.
    """
    if robust.guards(field):
        return robust.guarded_mean(uploads, field, weight, around)
    count, mass, like, counters = 0, Sum(), Params(), Params()
    sums: defaultdict[str, Sum] = defaultdict(Sum)
    for few in _handfuls(robust.noticed(uploads), field):
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
        note("one", f"a round had one client, so the sum of {field} is what that client sent.")
    means = {name: total.value().div_(mass.value()).to(like[name].dtype) for name, total in sums.items()}
    averaged = like | means | counters
    return averaged if isinstance(values, dict) else averaged[field]


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
