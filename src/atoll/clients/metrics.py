"""Load the user's own metrics: functions of logits and labels, from a file or from another package.

./scores.py:calibration      a function of a Python file
auroc                        a score of `atoll.core.decision_scores`, or an entry point of the group ``atoll.metrics``
sensitivity=0.3              sensitivity, or specificity, where a probability of 0.3 counts as positive
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from torch import Tensor

from ..core.decision_scores import AT_POINT, SCORES, at_point
from ..errors import AtollError, unknown
from ..utils.parsing import refusal
from ..utils.plugins import load_plugins
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
        if not colon:
            name, metric = _find_named(text)
        else:
            metric = entry(Path(source), name, "Metric file")
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


def _find_named(text: str) -> tuple[str, Metric]:
    """Return the metric that a value of ``--metric`` names, and its name in files."""
    name, sign, point = text.partition("=")
    if name in AT_POINT:
        title = f"{name}_at_{point.replace('.', '_')}" if sign else name
        return title, at_point(name, _read_point(text, point if sign else "0.5"))
    known = {**load_installed_metrics(), **SCORES}
    if text not in known:
        raise unknown("metric (or ./file.py:name)", text, [*known, *AT_POINT])
    return text, known[text]


def _read_point(text: str, point: str) -> float:
    try:
        value = float(point)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise refusal("--metric", text, "the point is no probability between 0 and 1", "NAME=POINT: sensitivity=0.3")
    return value


@cache
def load_installed_metrics() -> Mapping[str, Metric]:
    """Load the metrics of installed packages. Warns about a metric that cannot be loaded, and leaves it out."""
    return load_plugins("atoll.metrics")
