"""Combine uploads by the robust rule of a run (``--robust``), which a single client cannot decide.

Unlike a mean, which is a running sum, a rule needs the uploads of all clients in memory at once. A note reports
averages with too few clients to withstand a single Byzantine one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

from ..core.method import AnyMethod, traits_of
from ..core.payloads import Params
from ..core.tree import flatten_params, unflatten_params
from ..errors import AtollError
from .robust_rules import cap_weights, parse, to_masses

T = TypeVar("T")

NAMED = 20  # classes listed in a note


class RobustAggregation:
    """The robust rule of a run, with the fields that it averages. Reports each kind of note once.

    Args:
        rule: a value of ``--robust``.
        declared: fields whose averages follow the rule; all others are plain means.
        tell: called with the text of each note.
    """

    def __init__(self, rule: str, declared: Collection[str], tell: Callable[[str], None]):
        self.rule = parse(rule)
        self.declared = declared
        self._text = f"--robust {rule}"
        self._tell = tell
        self._guarded: set[str] = set()  # fields that the rule has averaged
        self._weights: set[str] = set()  # fields that the rule took as weights
        self._received: dict[str, None] = {}  # fields of the uploads that were averaged, in their order
        self.used = False  # True once a server has aggregated under the rule
        self._reported: set[str] = set()
        self._unprotected: dict[int, int] = {}  # classes with too few clients, and the fewest clients of each

    def weights(self, w: Tensor) -> Tensor:
        """Return the weights that the rule uses for the weights that clients report."""
        return w if self.rule.clips else cap_weights(w)

    def record_fields(self, uploads: Iterable[T]) -> Iterable[T]:
        """Return the same uploads, and record the fields of the first one for the notes of the rule."""
        left = iter(uploads)
        first = list(islice(left, 1))
        for upload in first:
            self._record_upload(upload)
        return chain(first, left)

    def _record_upload(self, upload: object) -> None:
        for f in fields(upload) if is_dataclass(upload) else ():
            v = getattr(upload, f.name)
            if isinstance(v, Tensor) or (v and isinstance(v, dict)):
                self._received[f.name] = None

    def record_use(self, field: str, weight: str | None) -> None:
        """Record that the rule has averaged ``field``, weighted by ``weight``."""
        self._guarded.add(field)
        if weight:
            self._weights.add(weight)

    def record_unprotected(self, c: int, clients: int) -> None:
        """Record that class ``c`` came from too few clients."""
        self._unprotected[c] = min(clients, self._unprotected.get(c, clients))

    def close(self, classes: Sequence[str]) -> None:
        """Report, once for the whole run, the fields that were not guarded and the classes with too few clients."""
        guarded = [field for field in self.declared if field in self._guarded]
        if others := [field for field in self._received if field not in self._guarded | self._weights]:
            alone = f"it guards {' and '.join(guarded)} alone" if guarded else "it guards nothing"
            self.note("others", f"{alone}. Not guarded: {', '.join(others)}.")
        missing = [field for field in self.declared if field not in self._guarded]
        if missing and self.used:
            self.note("nothing", f"there was nothing to guard: the server averaged no {' and no '.join(missing)}.")
        if self._unprotected:
            named = [f"{classes[c]} ({count})" for c, count in sorted(self._unprotected.items())]
            more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
            self.note(
                "classes",
                f"{len(named)} of {len(classes)} classes came from too few clients in some rounds to be protected from "
                f"any one of them (fewest in brackets): {', '.join(named[:NAMED])}{more}.",
            )

    def note(self, kind: str, words: str) -> None:
        """Report a note, unless one of this kind was reported before."""
        if kind not in self._reported:
            self._reported.add(kind)
            self._tell(f"{self._text}: {words}")

    def missing_centre(self, field: str) -> AtollError:
        """Return the error for a rule that clips ``field`` although the server has no such tensors."""
        return AtollError(
            f"{self._text} measures how far {field} moved from where the server was, and the server does not hold the "
            "same tensors. Choose another rule, or pass `around` to the mean of this method."
        )


def guard_for(method: AnyMethod, rule: str, tell: Callable[[str], None]) -> RobustAggregation:
    """Return the robust aggregation of a run, from the declarations of its method.

    Args:
        method: the method of the run.
        rule: a value of ``--robust``.
        tell: called with the text of each note.
    """
    traits = traits_of(method)
    guard = RobustAggregation(rule, traits.guards, tell)
    if traits.as_sent:
        guard.note("sent", f"it guards averages alone. Used as clients send them: {traits.as_sent}.")
    return guard


def guarded_mean(
    guard: RobustAggregation,
    server: object,
    uploads: Iterable[object],
    field: str,
    weight: str | None,
    around: Params | None,
) -> Params:
    """Combine one field of all uploads by a rule; integers take the largest value.

    A model is one point: distances and lengths are taken over all tensors together, running statistics included.

    Args:
        guard: the rule.
        server: the server's state before the round.
        uploads: uploads with Params in ``field``.
        field: the field to combine.
        weight: the field with the clients' weights; None for equal weights.
        around: what a rule measures from; None for the field of the same name in ``server``.
    """
    sent = list(uploads)
    values = [getattr(up, field) for up in sent]
    claimed = torch.stack([torch.as_tensor(getattr(up, weight) if weight else 1.0).double() for up in sent])
    w = to_masses(guard.weights(claimed))
    numbers = {name: v for name, v in values[0].items() if v.is_floating_point()}
    out = {name: torch.stack([v[name] for v in values]).amax(0) for name in values[0] if name not in numbers}
    if numbers:
        guard.record_use(field, weight)
        if words := guard.rule.weakness(w):
            guard.note("clients", f"the average of {field} is not guarded in full: {words}.")
        x = flatten_params(values, numbers).double()
        centre = _centre(guard, around or getattr(server, field, None), numbers, field)
        out |= unflatten_params(guard.rule.combine(x, w, centre), numbers)
    return {name: out[name] for name in values[0]}


def guarded_table(
    guard: RobustAggregation, sent: Iterable[tuple[Tensor, Tensor]], around: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine class tables by a rule, each class separately.

    Args:
        guard: the rule.
        sent: the table [C, d] and the weights [C] of each client.
        around: the server's table [C, d].

    Returns:
        As :func:`~atoll.aggregation.averaging.table_mean`.
    """
    tables, shares = (torch.stack(column).double() for column in zip(*sent, strict=True))
    means = torch.zeros_like(around)
    for c in (shares > 0).any(0).nonzero().flatten().tolist():
        held = shares[:, c] > 0
        w = guard.weights(shares[held, c])
        means[c] = guard.rule.combine(tables[held, c], w, around[c].double()).to(means.dtype)
        if guard.rule.weakness(w):
            guard.record_unprotected(c, len(w))
    return means, shares.clamp(min=0).sum(0)


def _centre(guard: RobustAggregation, around: Params | None, like: Params, field: str) -> Tensor:
    """Return the server's field as one row, for rules that clip."""
    if not guard.rule.clips:
        return torch.zeros(())
    if around is None or any(name not in around or around[name].shape != v.shape for name, v in like.items()):
        raise guard.missing_centre(field)
    return flatten_params([around], like)[0].double()
