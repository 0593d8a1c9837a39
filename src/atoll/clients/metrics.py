"""Measures of the user's own: functions of logits and labels, from a file or from another package.

./scores.py:calibration      a function of a Python file
brier                        an entry point of the group ``atoll.metrics``
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from torch import Tensor

from ..errors import AtollError, unknown
from ..utils.parsing import refusal
from ..utils.user_code import entry

Metric = Callable[[Tensor, Tensor], float]  # (logits [N, C], labels [N]) of one client's test rows, N > 0


def metrics(texts: Sequence[str], taken: Sequence[str]) -> dict[str, Metric]:
    """Load the metrics that values of ``--metric`` name; names that are ``taken`` are refused."""
    found: dict[str, Metric] = {}
    for text in texts:
        source, colon, name = text.rpartition(":")
        if colon and not (source and name):
            raise refusal(
                "--metric", text, "FILE or FUNCTION is missing", "NAME or FILE:FUNCTION, such as ./scores.py:f1"
            )
        metric = entry(Path(source), name, "Metric file") if colon else _named(text)
        check_name(name, [*taken, *found])
        found[name] = metric
    return found


def check_name(name: str, taken: Sequence[str]) -> None:
    if not name.isidentifier() or name in taken:
        raise AtollError(f"A metric cannot be called {name!r}: take a plain name that is not {', '.join(taken)}.")


def value(name: str, metric: Metric, logits: Tensor, labels: Tensor) -> float:
    """The measure as a number; without rows there is none."""
    if not len(labels):
        return math.nan
    try:
        return float(metric(logits, labels))
    except Exception as reason:  # a user's function may raise anything
        raise AtollError(
            f"Metric {name!r} failed on logits {list(logits.shape)} and labels {list(labels.shape)}: {reason!r}. "
            "It should take both and return a number."
        ) from reason


def _named(name: str) -> Metric:
    if name not in added():
        raise unknown("metric (or ./file.py:name)", name, added())
    return added()[name]


@cache
def added() -> Mapping[str, Metric]:
    """What installed packages bring; one that cannot be loaded is told and left out, for it is not ours to mend."""
    found: dict[str, Metric] = {}
    for point in entry_points(group="atoll.metrics"):
        try:
            found[point.name] = point.load()
        except Exception as reason:  # a foreign package may raise anything
            warnings.warn(f"atoll.metrics {point.name!r} ({point.value}) was left out: {reason}", stacklevel=2)
    return found
