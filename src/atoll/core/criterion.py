"""Name the score that selects rounds and ranks methods: its entry in files, its direction, its format."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Criterion(NamedTuple):
    """The score of a problem that selects rounds and ranks methods.

    Args:
        name: name of the score in files, such as ``accuracy``.
        title: name of the score in tables and sentences.
        higher: whether a higher value is better.
        percent: whether the score is a share, which is shown in percent; other scores are shown as they are.

    Example:
        >>> Criterion("mse", "MSE", higher=False, percent=False).format(0.25)
        '0.25'
    """

    name: str
    title: str
    higher: bool = True
    percent: bool = True

    @property
    def scale(self) -> float:
        """Factor from a stored value to the value that is shown."""
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        """What follows the title in a heading: ``", %"`` for shares, otherwise nothing."""
        return ", %" if self.percent else ""

    @property
    def better(self) -> str:
        """The word for better values."""
        return "higher" if self.higher else "lower"

    @property
    def heading(self) -> str:
        """The title at the beginning of a sentence; abbreviations such as mAP keep their letters."""
        return self.title.capitalize() if self.title.islower() else self.title

    def rank(self, value: float) -> float:
        """Return a number that is lower for a better value, and infinite for NaN: a key for ``sorted`` and ``min``."""
        if math.isnan(value):
            return math.inf
        return -value if self.higher else value

    def reaches(self, value: float, target: float) -> bool:
        """Return True if a value is at least as good as the target."""
        return value >= target if self.higher else value <= target

    def best(self, items: Iterable[T], value: Callable[[T], float]) -> T:
        """Return the item with the best value; the first one wins a tie."""
        return min(items, key=lambda item: self.rank(value(item)))

    def digits(self, shown: float) -> str:
        """Format a value that is already in the unit of tables: percent with two decimals, or four digits."""
        return f"{shown:.2f}" if self.percent else f"{shown:.4g}"

    def format(self, value: float) -> str:
        """Format a stored value for a sentence, such as ``93.50%``."""
        return f"{value:.2%}" if self.percent else f"{value:.4g}"

    def cell(self, value: float) -> str:
        """Format a stored value for a cell of a table, whose heading has the unit."""
        return self.digits(self.scale * value)

    def named(self, value: float) -> str:
        """Format a stored value with the title of the score, which only accuracies do without."""
        return self.format(value) if self.name == "accuracy" else f"{self.title} {self.format(value)}"


ACCURACY = Criterion("accuracy", "accuracy")
