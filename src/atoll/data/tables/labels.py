"""Order names of classes and measure labels: what clients must agree on besides the columns of their tables."""

import json
from collections.abc import Iterable, Sequence
from math import fsum, sqrt
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.generic]
EPSILON = float(np.finfo(np.float64).eps)
MOST_NAMES = 2**16
_MOST_DIGITS = 18


class TargetSums(NamedTuple):
    """Sums over the targets of training rows, one for each target.

    Args:
        total: the sums of the targets.
        squares: the sums of their squares.
    """

    total: list[float]
    squares: list[float]


def class_order(name: str) -> tuple[bool, int, str]:
    """Return the sort key of the name of a class: whole numbers by size, then other names by the alphabet.

    The order of two names does not depend on a third one, so the classes of one site have the order of all sites.
    """
    digits = name.removeprefix("-")
    whole = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS and str(int(name)) == name
    return not whole, int(name) if whole else 0, name


def frequent_names(classes: Sequence[str], y: Labels, least: int) -> list[str]:
    """Return the names of the classes of at least ``least`` rows, and of at least one."""
    counts = np.bincount(y.astype(np.int64), minlength=len(classes))
    return [name for name, count in zip(classes, counts.tolist(), strict=True) if count >= max(1, least)]


def find_respelled(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ in capitals, spaces or the form of accents alone, or None."""
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(" ".join(normalize("NFKC", name).casefold().split()), name)
        if other != name:
            return other, name
    return None


def join_names(parts: Iterable[str]) -> str:
    """Return the names of all sites in their order, as JSON; ``parts`` are those of each site, as JSON."""
    return names_to_text(sorted({name for part in parts for name in json.loads(part)}, key=class_order))


def names_to_text(names: Sequence[str]) -> str:
    """Return names of classes as JSON."""
    return json.dumps(list(names), ensure_ascii=False, separators=(",", ":"))


def find_names_fault(text: str, asked: bool) -> str | None:
    """Return what is wrong with the names of classes that another machine sent, or None.

    Args:
        text: the names, as JSON.
        asked: whether names were asked for.
    """
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return "names of classes that cannot be read"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > MOST_NAMES:
        return "names of classes that cannot be read"
    if not asked and names:
        return "names of classes, which nobody asked for"
    return None if names == sorted(set(names), key=class_order) else "names of classes in another order"


def sum_targets(y: Labels) -> TargetSums:
    """Return the sums over targets ``[N, T]``, each rounded once."""
    columns = y.astype(np.float64).T.tolist()
    return TargetSums([fsum(values) for values in columns], [fsum(v * v for v in values) for values in columns])


def deviation(total: float, squares: float, count: int) -> float:
    """Return the standard deviation of ``count`` numbers, as scikit-learn does: 1 where it is 0 but for rounding."""
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)
    rounding = 4 * EPSILON * squares / count  # Squares are rounded once each, and sums once.
    return sqrt(variance) if variance > rounding else 1.0
