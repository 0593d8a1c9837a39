"""Draw the scores of a search against its settings."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..report.plots.axes import entitle_figure
from ..report.plots.lines import Axis, Line, Panel, Up, lines
from .trials import Trial

SPAN = 20  # a largest value this many times the smallest one asks for a logarithmic axis
DASHES = {"val": "solid", "test": "dashed"}
WORDS = {"solid": "validation, which decides", "dashed": "test"}


def draw_settings(tried: Sequence[Trial], model: str) -> Figure:
    """Draw validation and test scores against each setting that has several values.

    Args:
        tried: the points of the search.
        model: whose scores they are, ``personal`` or ``generic``.

    Returns:
        A panel for each setting. A line joins the points that differ in this setting alone.
    """
    names = [name for name in tried[0].point if len({str(t.point[name]) for t in tried}) > 1] or list(tried[0].point)[
        :1
    ]
    score = tried[0].criterion
    numbers = {name: _as_numbers(tried, name) for name in names}
    known = [v for values in numbers.values() if values for v in values]
    log = bool(known) and all(numbers.values()) and min(known) > 0 and max(known) > SPAN * min(known)
    named = [] if all(numbers.values()) else list(dict.fromkeys(str(t.point[name]) for name in names for t in tried))
    panels = [Panel(name if len(names) > 1 else "", _lines(tried, name, numbers[name], named)) for name in names]
    across = Axis(names[0] if len(names) == 1 else "value of the setting", log=log, names=named, each=True)
    fig = lines(panels, across, Up(f"{model} {score.title}{score.unit}", score.percent), WORDS)
    entitle_figure(fig, f"{score.heading} against {', '.join(names)}")
    return fig


def _as_numbers(tried: Sequence[Trial], name: str) -> list[float]:
    """Return the values of a setting by trial; empty if some value is no number."""
    try:
        return [float(str(t.point[name])) for t in tried]
    except ValueError:
        return []


def _lines(tried: Sequence[Trial], name: str, numbers: Sequence[float], named: Sequence[str]) -> list[Line]:
    at = [float(named.index(str(t.point[name]))) for t in tried] if named else list(numbers)
    groups: dict[str, list[int]] = {}
    for i, trial in enumerate(tried):
        rest = ", ".join(f"{key}={value}" for key, value in trial.point.items() if key != name)
        groups.setdefault(rest or name, []).append(i)
    found = []
    for rest, members in groups.items():
        ordered = sorted(members, key=lambda i: at[i])
        for measure, dash in DASHES.items():
            values = np.array([[getattr(tried[i], measure) for i in ordered]], dtype=float)
            found.append(Line(rest, [at[i] for i in ordered], values, dash))
    return found
