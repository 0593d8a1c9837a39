"""Search over settings: grid, random or Bayesian."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from ..core.prng import key, uniform
from ..errors import AtollError
from ..utils.parsing import parse_pair, refusal

Point = dict[str, str]  # settings as a user would write them: {"lam": "0.1"}

MODELS = ("personal", "generic")  # The kinds of model whose validation score may decide.
DIGITS = 4  # Significant digits of drawn numbers; more would only make names long.


@dataclass(frozen=True)
class Axis:
    """One setting and its values: a list, or all numbers between two."""

    name: str
    values: tuple[str, ...] = ()
    low: float = math.nan
    high: float = math.nan

    @cached_property
    def ranged(self) -> bool:
        """True if the values are all numbers between two."""
        return not self.values

    @cached_property
    def logarithmic(self) -> bool:
        """True if numbers are drawn by their logarithm: over powers of ten a plain draw would miss the small ones."""
        return self.low > 0 and self.high / self.low > 10

    def at(self, share: float) -> str:
        """Return the value that is ``share`` (from 0 to 1) of the way along."""
        if not self.ranged:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.logarithmic:
            return f"{self.low * (self.high / self.low) ** share:.{DIGITS}g}"
        return f"{self.low + (self.high - self.low) * share:.{DIGITS}g}"


FORM = "NAME=VALUE,VALUE,... or NAME=LOW..HIGH, such as lam=0.1,1 or lam=0.001..10"


def parse_axis(text: str) -> Axis:
    """Read a value of ``--grid``: ``lam=0.01,0.1,1`` or ``lam=0.001..10``."""
    name, listed = parse_pair("--grid", text, FORM)
    values = tuple(filter(None, listed.split(",")))
    if not values:
        raise refusal("--grid", text, f"{name} has no values", FORM)
    if ".." in listed:
        return Axis(name, (), *_range(text, listed))
    if len(set(values)) < len(values):
        raise refusal("--grid", text, "it names a value twice", FORM)
    return Axis(name, values)


def _range(text: str, listed: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in listed.split(".."))
    except ValueError:
        raise refusal("--grid", text, "LOW and HIGH must be numbers", FORM) from None
    if not -math.inf < low < high < math.inf:
        raise refusal("--grid", text, "LOW must be below HIGH, and both finite", FORM)
    return low, high


class Search(Protocol):
    """A search strategy: proposes points in batches, and receives their validation scores; higher is better."""

    def batches(self) -> Iterator[list[Point]]: ...
    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None: ...


@dataclass(frozen=True)
class Grid:
    """Every combination of the listed values."""

    axes: Sequence[Axis]

    def __post_init__(self) -> None:
        for a in self.axes:
            if a.ranged:
                raise AtollError(f"A grid needs values, and {a.name} has a range. List some, or add --random N.")

    def batches(self) -> Iterator[list[Point]]:
        names = [a.name for a in self.axes]
        yield [dict(zip(names, values, strict=True)) for values in product(*(a.values for a in self.axes))]

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        """Do nothing: all points are known from the beginning."""


@dataclass(frozen=True)
class Random:
    """Points drawn at random, each axis by itself; the same seed draws the same points."""

    axes: Sequence[Axis]
    trials: int
    seed: int

    def batches(self) -> Iterator[list[Point]]:
        yield [self._point(i) for i in range(self.trials)]

    def _point(self, i: int) -> Point:
        shares = uniform(key(self.seed, "sweep", i), len(self.axes)).tolist()
        return {a.name: a.at(share) for a, share in zip(self.axes, shares, strict=True)}

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        """Do nothing: points are drawn independently."""


class Bayes:
    """Points that Optuna proposes from the accuracies of earlier ones."""

    def __init__(self, axes: Sequence[Axis], trials: int, seed: int, at_once: int):
        try:
            import optuna
        except ImportError:
            raise AtollError("--optuna needs the package optuna: pip install optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=at_once > 1)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._axes = axes
        self._trials = trials
        self._at_once = at_once
        self._asked: list[Any] = []

    def batches(self) -> Iterator[list[Point]]:
        for start in range(0, self._trials, self._at_once):
            self._asked = [self._study.ask() for _ in range(min(self._at_once, self._trials - start))]
            yield [{a.name: self._suggest(trial, a) for a in self._axes} for trial in self._asked]

    def _suggest(self, trial: Any, a: Axis) -> str:
        if not a.ranged:
            return str(trial.suggest_categorical(a.name, a.values))
        return f"{trial.suggest_float(a.name, a.low, a.high, log=a.logarithmic):.{DIGITS}g}"

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        from optuna.trial import TrialState

        for trial, score in zip(self._asked, scores, strict=True):
            failed = math.isnan(score)
            self._study.tell(trial, None if failed else score, state=TrialState.FAIL if failed else None)
