"""Averages that no single client can decide: what ``--robust`` puts in place of weighted means.

Rules are functions of uploads x [K, D], one row for each client, and of their weights w [K], such as rows of data; both
in double precision. Unlike a mean, which is a running sum, they need the uploads of all clients in memory at once.
Weights are what clients say of themselves: they count as mass (a client with twice the rows counts like two clients),
up to the median of all. So whatever they claim, no part of the clients has more than twice its share of the mass. Where
an average has too few clients to withstand a single one of them, that is told.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..core.method import Method, declared
from ..core.payloads import Params
from ..core.tree import flatten_params, unflatten_params
from ..errors import AtollError, unknown
from ..utils.parsing import Spec, number, whole

T = TypeVar("T")

ITERATIONS = 64  # of Weiszfeld's algorithm: always the same number, so that runs can be repeated
AT_ONCE = 2**16  # columns that are sorted together: more only cost memory
NAMED = 20  # classes in a note
NEGLIGIBLE = 1e-9  # share of the weight that rounding may have left over

# ---------------------------------------------------------------------------------------------------------------------
# The arithmetic


def weighted(x: Tensor, w: Tensor) -> Tensor:
    """The weighted mean, added up row by row as a stream of uploads would be."""
    total = torch.zeros_like(x[0])
    for row, share in zip(x, w, strict=True):
        total = total + share * row
    return total / w.sum()


def median(x: Tensor, w: Tensor) -> Tensor:
    """Of each column, the value with half of the weight on either side; halfway between two, if both are such."""
    ordered, order = x.sort(0)
    reached, half = w[order].cumsum(0), w.sum() / 2
    first, last = (reached < half).sum(0), (reached <= half).sum(0).clamp(max=len(x) - 1)
    return (ordered.gather(0, first[None]) + ordered.gather(0, last[None]))[0] / 2


def trimmed(x: Tensor, w: Tensor, share: float) -> Tensor:
    """Of each column, the weighted mean without ``share`` of the weight at either end; a row may go in part."""
    ordered, order = x.sort(0)
    mass, whole = w[order], w.sum()
    end = mass.cumsum(0)
    kept = (end.clamp(max=whole * (1 - share)) - (end - mass).clamp(min=whole * share)).clamp(min=0)
    kept = torch.where(kept > NEGLIGIBLE * whole, kept, 0)
    return (kept / kept.sum(0) * ordered).sum(0)


def geometric(x: Tensor, w: Tensor) -> Tensor:
    """The point with the least weighted sum of distances to the rows, by Weiszfeld's steps from the median.

    A step that starts on a row is shortened as by Vardi and Zhang (PNAS 2000), so that no row holds it back.
    """
    z = by_columns(median, x, w)
    for _ in range(ITERATIONS):
        far = distances(x, z)
        away = far > 0
        if not away.any():
            break
        pull = torch.where(away, w / far, 0)
        way = weighted(x, pull) - z
        held, force = w[~away].sum(), way.norm() * pull.sum()
        if held >= force:  # also if there is no force at all
            break
        z = z + (1 - held / force) * way
    return z


def krum(x: Tensor, f: int, most: int | None = None) -> Tensor:
    """The positions of the rows nearest to others, in their order: multi-Krum (Blanchard et al., NeurIPS 2017).

    A row's score is the sum of its squared distances to the K - f - 2 rows nearest to it. The K - f - 2 rows with the
    lowest scores are chosen, or ``most``; at equal scores, earlier ones. Weights play no part in it.
    """
    near = max(len(x) - f - 2, 1)
    squares = torch.stack([distances(x, row).square() for row in x])
    score = squares.sort(1).values[:, 1 : 1 + near].sum(1)  # the first one is the row itself
    return score.argsort(stable=True)[: near if most is None else most].sort().values


def clipped(x: Tensor, around: Tensor, norm: float) -> Tensor:
    """Rows that are further than ``norm`` from ``around`` come as near as that, on a straight line."""
    far = distances(x, around)[:, None]
    return torch.where(far > norm, around + norm / far * (x - around), x)


def distances(x: Tensor, z: Tensor) -> Tensor:
    """Of each row from ``z`` [K]."""
    return torch.stack([(row - z).norm() for row in x])


def by_columns(f: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    """What ``f`` makes of every column, a number of columns at a time."""
    return torch.cat([f(columns, w) for columns in x.split(AT_ONCE, 1)])


# ---------------------------------------------------------------------------------------------------------------------
# The rules, as users write them


class Rule:
    """How uploads become one."""

    form: ClassVar[Spec]  # how to write it
    clips: ClassVar[bool] = False  # whether it measures from where the server is, and bounds clients in place of a vote

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        """One row from all; ``around`` is where the server is, for a rule that asks for it."""
        raise NotImplementedError

    def weakness(self, w: Tensor) -> str | None:
        """Why clients of these weights are not safe from every single one of them, if so."""
        if _largest(w) < 0.5 - NEGLIGIBLE:
            return None
        return _outweighed(w, "less than 50%")


@dataclass(frozen=True)
class Median(Rule):
    form: ClassVar[Spec] = Spec("median, and nothing else")

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return by_columns(median, x, w)


@dataclass(frozen=True)
class Geometric(Rule):
    form: ClassVar[Spec] = Spec("geometric, and nothing else")

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return geometric(x, w)


@dataclass(frozen=True)
class Trimmed(Rule):
    share: float
    form: ClassVar[Spec] = Spec(
        "trimmed:SHARE, with the share to leave out at either end, such as trimmed:0.2",
        number("SHARE", least=0, most=0.49),
    )

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return by_columns(lambda columns, mass: trimmed(columns, mass, self.share), x, w)

    def weakness(self, w: Tensor) -> str | None:
        if _largest(w) <= self.share + NEGLIGIBLE:
            return None
        return _outweighed(w, f"{100 * self.share:.3g}%")


@dataclass(frozen=True)
class Krum(Rule):
    f: int
    most: int | None = None
    form: ClassVar[Spec] = Spec(
        "krum:F, with the number of attackers, or krum:F:M, to average the M clients it ranks first, such as krum:2",
        whole("F"),
        whole("M", least=1, optional=True),
    )

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        chosen = krum(x, self.f, self.most)
        return weighted(x[chosen], masses(w[chosen]))

    def weakness(self, w: Tensor) -> str | None:
        least = 2 * self.f + 3
        return f"it comes from {_clients(w)}, and the rule wants {least}" if len(w) < least else None


@dataclass(frozen=True)
class Clip(Rule):
    norm: float
    form: ClassVar[Spec] = Spec(
        "clip:NORM, with the length to which updates are cut, such as clip:1", number("NORM", above=0)
    )
    clips: ClassVar[bool] = True

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return weighted(clipped(x, around, self.norm), w)

    def weakness(self, w: Tensor) -> str | None:
        return None  # it bounds what a client can do, however few there are


RULES: dict[str, type[Rule]] = {
    "median": Median,
    "trimmed": Trimmed,
    "geometric": Geometric,
    "krum": Krum,
    "clip": Clip,
}


def parse(text: str) -> Rule:
    """Make the rule that a value of ``--robust`` names, such as ``trimmed:0.2``."""
    name = text.partition(":")[0]
    if name not in RULES:
        raise unknown("rule for --robust", name, RULES)
    rule: Rule = RULES[name](*RULES[name].form.parse("--robust", text, skip=1))
    return rule


def masses(w: Tensor) -> Tensor:
    """Weights that can be added up: none is negative and, if nobody has any, all count alike."""
    w = w.clamp(min=0)
    return w if w.sum() > 0 else torch.ones_like(w)


def capped(w: Tensor) -> Tensor:
    """Weights up to the median of those above 0, of two the lower; half of the clients then weigh just that."""
    positive = w[w > 0]
    return w.clamp(max=positive.median()) if len(positive) else w


def _largest(w: Tensor) -> float:
    return float(w.max() / w.sum())


def _outweighed(w: Tensor, limit: str) -> str:
    return f"one of {_clients(w)} counts for {100 * _largest(w):.3g}% of it, and the rule withstands {limit}"


def _clients(w: Tensor) -> str:
    return f"{len(w)} client{'' if len(w) == 1 else 's'}"


# ---------------------------------------------------------------------------------------------------------------------
# The rule of a run


class RobustAggregation:
    """The rule of a run, the fields that it is for, and notes about it: each kind of note once."""

    def __init__(self, rule: str, declared: Collection[str], tell: Callable[[str], None]):
        self.rule, self._text, self._tell = parse(rule), f"--robust {rule}", tell
        self.declared = declared  # fields whose averages follow the rule; all others are plain means
        self._guarded: set[str] = set()  # fields that the rule has averaged
        self._weights: set[str] = set()  # fields that the rule took as weights
        self._received: dict[str, None] = {}  # fields of uploads that a mean was taken of, in their order
        self.used = False  # whether a server has aggregated under the rule
        self._told: set[str] = set()
        self._thin: dict[int, int] = {}  # classes that were not protected, and the fewest clients they came from

    def weights(self, w: Tensor) -> Tensor:
        """How much clients count who claim so much."""
        return w if self.rule.clips else capped(w)

    def notice(self, uploads: Iterable[T]) -> Iterable[T]:
        """Pass uploads on, and remember the fields of the first one for the notes of the rule."""
        left = iter(uploads)
        first = list(islice(left, 1))
        for upload in first:
            self._receive(upload)
        return chain(first, left)

    def _receive(self, upload: Any) -> None:
        for f in fields(upload) if is_dataclass(upload) else ():
            v = getattr(upload, f.name)
            if isinstance(v, Tensor) or (v and isinstance(v, dict)):
                self._received[f.name] = None

    def applied(self, field: str, weight: str | None) -> None:
        """Remember that the rule has averaged ``field``, weighted by ``weight``."""
        self._guarded.add(field)
        if weight:
            self._weights.add(weight)

    def thin(self, c: int, clients: int) -> None:
        """Class ``c`` came from too few clients."""
        self._thin[c] = min(clients, self._thin.get(c, clients))

    def close(self, classes: Sequence[str]) -> None:
        """Tell, once for the whole run, which fields were not guarded, and which classes not throughout."""
        guarded = [field for field in self.declared if field in self._guarded]
        if others := [field for field in self._received if field not in self._guarded | self._weights]:
            alone = f"it guards {' and '.join(guarded)} alone" if guarded else "it guards nothing"
            self.note("others", f"{alone}. Not guarded: {', '.join(others)}.")
        missing = [field for field in self.declared if field not in self._guarded]
        if missing and self.used:
            self.note("nothing", f"there was nothing to guard: the server averaged no {' and no '.join(missing)}.")
        if self._thin:
            named = [f"{classes[c]} ({count})" for c, count in sorted(self._thin.items())]
            more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
            self.note(
                "classes",
                f"{len(named)} of {len(classes)} classes came from too few clients in some rounds to be protected from "
                f"any one of them (fewest in brackets): {', '.join(named[:NAMED])}{more}.",
            )

    def note(self, kind: str, words: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"{self._text}: {words}")

    def unlike(self, what: str) -> AtollError:
        return AtollError(
            f"{self._text} measures how far {what} moved from where the server was, and the server does not hold the "
            "same tensors. Take another rule, or hand `around` to the mean of this method."
        )


def guard_for(method: Method[Any, Any, Any, Any], rule: str, tell: Callable[[str], None]) -> RobustAggregation:
    """Make the guard of a run from the declarations of its method."""
    guard = RobustAggregation(rule, declared(type(method), "guards"), tell)
    if as_sent := declared(type(method), "as_sent"):
        guard.note("sent", f"it guards averages alone. Used as clients send them: {as_sent}.")
    return guard


def guarded_mean(
    guard: RobustAggregation, server: Any, uploads: Iterable[Any], field: str, weight: str | None, around: Params | None
) -> Params:
    """Combine one field of all uploads by a rule; integers take the largest.

    A model is one point: distances and lengths are those of all its tensors together, running statistics included.

    Args:
        guard: the rule.
        server: the state of the server before the round.
        uploads: uploads with Params in ``field``.
        field: the field to combine.
        weight: the field that clients count by; None if all count alike.
        around: where a rule measures from; None for the field of the same name in ``server``.
    """
    sent = list(uploads)
    values = [getattr(up, field) for up in sent]
    claimed = torch.stack([torch.as_tensor(getattr(up, weight) if weight else 1.0).double() for up in sent])
    w = masses(guard.weights(claimed))
    numbers = {name: v for name, v in values[0].items() if v.is_floating_point()}
    out = {name: torch.stack([v[name] for v in values]).amax(0) for name in values[0] if name not in numbers}
    if numbers:
        guard.applied(field, weight)
        if words := guard.rule.weakness(w):
            guard.note("clients", f"the average of {field} is not guarded in full: {words}.")
        x = flatten_params(values, numbers).double()
        centre = _centre(guard, around or getattr(server, field, None), numbers, field)
        out |= unflatten_params(guard.rule.combine(x, w, centre), numbers)
    return {name: out[name] for name in values[0]}


def guarded_table(
    guard: RobustAggregation, sent: Iterable[tuple[Tensor, Tensor]], around: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine class tables by a rule, each class for itself; see :func:`~atoll.aggregation.averaging.table_mean`."""
    tables, shares = (torch.stack(column).double() for column in zip(*sent, strict=True))
    means = torch.zeros_like(around)
    for c in (shares > 0).any(0).nonzero().flatten().tolist():
        held = shares[:, c] > 0
        w = guard.weights(shares[held, c])
        means[c] = guard.rule.combine(tables[held, c], w, around[c].double()).to(means.dtype)
        if guard.rule.weakness(w):
            guard.thin(c, len(w))
    return means, shares.clamp(min=0).sum(0)


def _centre(guard: RobustAggregation, around: Params | None, like: Params, field: str) -> Tensor:
    """Where the server is, for rules that measure from there."""
    if not guard.rule.clips:
        return torch.zeros(())
    if around is None or any(name not in around or around[name].shape != v.shape for name, v in like.items()):
        raise guard.unlike(field)
    return flatten_params([around], like)[0].double()
