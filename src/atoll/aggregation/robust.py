"""Combine uploads by robust rules (``--robust``), which a single client cannot decide.

Rules are functions of uploads x [K, D], one row for each client, and of weights w [K], such as numbers of samples; both
in double precision. Unlike a mean, which is a running sum, a rule needs the uploads of all clients in memory at once.
Clients report their own weights, so weights are capped at the median of all: whatever weights clients claim, no group
of clients has more than twice its share of the total. A note reports averages with too few clients to withstand a
single Byzantine one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, islice
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..core.method import Method, traits_of
from ..core.payloads import Params
from ..core.tree import flatten_params, unflatten_params
from ..errors import AtollError, unknown
from ..utils.parsing import Spec, number, whole

T = TypeVar("T")

ITERATIONS = 64  # steps of Weiszfeld's algorithm: a fixed number, so that runs can be repeated
COLUMNS_AT_ONCE = 2**16  # columns that are sorted together: more only cost memory
NAMED = 20  # classes listed in a note
NEGLIGIBLE = 1e-9  # share of the weight that may be left by rounding

# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic of the rules


def weighted_mean(x: Tensor, w: Tensor) -> Tensor:
    """Return the weighted mean of rows, added up row by row as a stream of uploads is."""
    total = torch.zeros_like(x[0])
    for row, share in zip(x, w, strict=True):
        total = total + share * row
    return total / w.sum()


def median(x: Tensor, w: Tensor) -> Tensor:
    """Return the weighted median of each column. Ties give the midpoint."""
    ordered, order = x.sort(0)
    reached, half = w[order].cumsum(0), w.sum() / 2
    first, last = (reached < half).sum(0), (reached <= half).sum(0).clamp(max=len(x) - 1)
    return (ordered.gather(0, first[None]) + ordered.gather(0, last[None]))[0] / 2


def trimmed_mean(x: Tensor, w: Tensor, share: float) -> Tensor:
    """Return the weighted mean of each column without ``share`` of the weight at either end.

    The weight of a row on the boundary is cut in part.
    """
    ordered, order = x.sort(0)
    mass, whole = w[order], w.sum()
    end = mass.cumsum(0)
    kept = (end.clamp(max=whole * (1 - share)) - (end - mass).clamp(min=whole * share)).clamp(min=0)
    kept = torch.where(kept > NEGLIGIBLE * whole, kept, 0)
    return (kept / kept.sum(0) * ordered).sum(0)


def geometric_median(x: Tensor, w: Tensor) -> Tensor:
    """Return the point with the least weighted sum of distances to the rows, by Weiszfeld's algorithm.

    Starts at the median of columns. A step that starts on a row is shortened as by Vardi and Zhang (PNAS 2000), so that
    the iteration does not stop at that row.
    """
    z = apply_by_columns(median, x, w)
    for _ in range(ITERATIONS):
        far = distances(x, z)
        away = far > 0
        if not away.any():
            break
        pull = torch.where(away, w / far, 0)
        way = weighted_mean(x, pull) - z
        held, force = w[~away].sum(), way.norm() * pull.sum()
        if held >= force:  # True as well if the force is 0
            break
        z = z + (1 - held / force) * way
    return z


def krum(x: Tensor, f: int, most: int | None = None) -> Tensor:
    """Return the positions of the rows that multi-Krum selects, in ascending order (Blanchard et al., NeurIPS 2017).

    The score of a row is the sum of its squared distances to its K - f - 2 nearest rows. The rows with the lowest
    scores are selected; ties go to earlier rows. Weights have no influence.

    Args:
        x: uploads [K, D].
        f: number of Byzantine clients.
        most: number of rows to select; None for K - f - 2.
    """
    near = max(len(x) - f - 2, 1)
    squares = torch.stack([distances(x, row).square() for row in x])
    score = squares.sort(1).values[:, 1 : 1 + near].sum(1)  # The first entry is the row itself.
    return score.argsort(stable=True)[: near if most is None else most].sort().values


def clip_rows(x: Tensor, around: Tensor, norm: float) -> Tensor:
    """Scale the difference between each row and ``around`` to a length of at most ``norm``."""
    far = distances(x, around)[:, None]
    return torch.where(far > norm, around + norm / far * (x - around), x)


def distances(x: Tensor, z: Tensor) -> Tensor:
    """Return the Euclidean distance of each row from ``z``. Shape [K]."""
    return torch.stack([(row - z).norm() for row in x])


def apply_by_columns(f: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    """Apply a rule of single columns to ``COLUMNS_AT_ONCE`` columns at a time."""
    return torch.cat([f(columns, w) for columns in x.split(COLUMNS_AT_ONCE, 1)])


# ---------------------------------------------------------------------------------------------------------------------
# The rules, as users write them


class Rule:
    """Combine the uploads of all clients into one."""

    form: ClassVar[Spec]  # syntax of the rule in ``--robust``
    clips: ClassVar[bool] = False  # True if the rule bounds each client's update instead of comparing clients

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        """Return one row [D] from uploads ``x`` [K, D] with weights ``w`` [K].

        ``around`` [D] is the server's state, for a rule that clips.
        """
        raise NotImplementedError

    def weakness(self, w: Tensor) -> str | None:
        """Return the reason if a single client of these weights could decide the result, otherwise None."""
        if _largest(w) < 0.5 - NEGLIGIBLE:
            return None
        return _outweighed(w, "less than 50%")


@dataclass(frozen=True)
class Median(Rule):
    """The weighted median of every coordinate."""

    form: ClassVar[Spec] = Spec("median, and nothing else")

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return apply_by_columns(median, x, w)


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The weighted geometric median."""

    form: ClassVar[Spec] = Spec("geometric, and nothing else")

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return geometric_median(x, w)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The weighted mean of every coordinate without a share at either end."""

    share: float
    form: ClassVar[Spec] = Spec(
        "trimmed:SHARE, with the share to leave out at either end, such as trimmed:0.2",
        number("SHARE", least=0, most=0.49),
    )

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return apply_by_columns(lambda columns, mass: trimmed_mean(columns, mass, self.share), x, w)

    def weakness(self, w: Tensor) -> str | None:
        if _largest(w) <= self.share + NEGLIGIBLE:
            return None
        return _outweighed(w, f"{100 * self.share:.3g}%")


@dataclass(frozen=True)
class Krum(Rule):
    """The weighted mean of the uploads that multi-Krum selects."""

    f: int
    most: int | None = None
    form: ClassVar[Spec] = Spec(
        "krum:F, with the number of attackers, or krum:F:M, to average the M clients it ranks first, such as krum:2",
        whole("F"),
        whole("M", least=1, optional=True),
    )

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        chosen = krum(x, self.f, self.most)
        return weighted_mean(x[chosen], to_masses(w[chosen]))

    def weakness(self, w: Tensor) -> str | None:
        least = 2 * self.f + 3
        return f"it comes from {_clients(w)}, and the rule wants {least}" if len(w) < least else None


@dataclass(frozen=True)
class Clip(Rule):
    """The weighted mean of updates whose length is clipped."""

    norm: float
    form: ClassVar[Spec] = Spec(
        "clip:NORM, with the length to which updates are cut, such as clip:1", number("NORM", above=0)
    )
    clips: ClassVar[bool] = True

    def combine(self, x: Tensor, w: Tensor, around: Tensor) -> Tensor:
        return weighted_mean(clip_rows(x, around, self.norm), w)

    def weakness(self, w: Tensor) -> str | None:
        return None  # The bound on a client's update holds for any number of clients.


RULES: dict[str, type[Rule]] = {
    "median": Median,
    "trimmed": TrimmedMean,
    "geometric": GeometricMedian,
    "krum": Krum,
    "clip": Clip,
}


def parse(text: str) -> Rule:
    """Return the rule that a value of ``--robust`` names, such as ``trimmed:0.2``.

    Raises:
        AtollError: if the rule is unknown or malformed.
    """
    name = text.partition(":")[0]
    if name not in RULES:
        raise unknown("rule for --robust", name, RULES)
    rule: Rule = RULES[name](*RULES[name].form.parse("--robust", text, skip=1))
    return rule


def to_masses(w: Tensor) -> Tensor:
    """Return weights that are not negative; equal weights if no client has a positive one."""
    w = w.clamp(min=0)
    return w if w.sum() > 0 else torch.ones_like(w)


def cap_weights(w: Tensor) -> Tensor:
    """Cap weights at the (lower) median of the positive ones, so that half of the clients have the same weight."""
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

    def _record_upload(self, upload: Any) -> None:
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


def guard_for(method: Method[Any, Any, Any, Any], rule: str, tell: Callable[[str], None]) -> RobustAggregation:
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
    guard: RobustAggregation, server: Any, uploads: Iterable[Any], field: str, weight: str | None, around: Params | None
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
