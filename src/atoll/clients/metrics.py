"""Load the user's own metrics: functions of logits and labels, from a file or from another package.

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


def load_metrics(texts: Sequence[str], taken: Sequence[str]) -> dict[str, Metric]:
    """Load metrics by name or by file and function.

    Args:
        texts: values of ``--metric``.
        taken: names that a metric must not have.

    Returns:
        The functions, by name.

    Raises:
        AtollError: a value cannot be read, a metric is not found, or a name is taken.
    """
    found: dict[str, Metric] = {}
    for text in texts:
        source, colon, name = text.rpartition(":")
        if colon and not (source and name):
            raise refusal(
                "--metric", text, "FILE or FUNCTION is missing", "NAME or FILE:FUNCTION, such as ./scores.py:f1"
            )
        metric = entry(Path(source), name, "Metric file") if colon else _find_installed(text)
        check_name(name, [*taken, *found])
        found[name] = metric
    return found


def check_name(name: str, taken: Sequence[str]) -> None:
    """Raise an AtollError if a metric's name is no identifier or is already taken."""
    if not name.isidentifier() or name in taken:
        raise AtollError(f"A metric cannot be called {name!r}: take a plain name that is not {', '.join(taken)}.")


def compute_metric(name: str, metric: Metric, logits: Tensor, labels: Tensor) -> float:
    """Compute a metric, NaN without rows. Raises an AtollError if the user's function fails."""
    if not len(labels):
        return math.nan
    try:
        return float(metric(logits, labels))
    except Exception as reason:  # A user's function may raise anything.
        raise AtollError(
            f"Metric {name!r} failed on logits {list(logits.shape)} and labels {list(labels.shape)}: {reason!r}. "
            "It should take both and return a number."
        ) from reason


def _find_installed(name: str) -> Metric:
    installed = load_installed_metrics()
    if name not in installed:
        raise unknown("metric (or ./file.py:name)", name, installed)
    return installed[name]


@cache
def load_installed_metrics() -> Mapping[str, Metric]:
    """Load the metrics of installed packages. Warns about a metric that cannot be loaded, and leaves it out."""
    found: dict[str, Metric] = {}
    for point in entry_points(group="atoll.metrics"):
        try:
            found[point.name] = point.load()
        except Exception as reason:  # An installed package may raise anything.
            warnings.warn(f"atoll.metrics {point.name!r} ({point.value}) was left out: {reason}", stacklevel=2)
    return found
