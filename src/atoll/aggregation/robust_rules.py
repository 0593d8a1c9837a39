"""Define the robust rules that ``--robust`` names, and the weights that they use.

Clients report their own weights, so weights are capped at the median of all: whatever weights clients claim, no group
of clients has more than twice its share of the total.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import unknown
from ..utils.parsing import Spec, number, whole
from .robust_estimators import (
    NEGLIGIBLE,
    apply_by_columns,
    clip_rows,
    geometric_median,
    krum,
    median,
    trimmed_mean,
    weighted_mean,
)


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
        raise unknown("rule", name, RULES, "for --robust")
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
