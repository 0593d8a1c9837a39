"""Draw one quantity against another as lines, with the spread over seeds."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ..style import MUTED, WIDE, ArtistStyle, colour, styled
from ..wording import size
from .axes import Array, entitle, grid, handle, is_wide, label, legend, legend_height, log_ticks, look, percent, short

DASHES: ArtistStyle = {"solid": "-", "dashed": (0, (4, 2)), "dashdot": (0, (6, 2, 1, 2)), "dotted": ":"}
GOAL: ArtistStyle = {"color": MUTED, "linestyle": (0, (1, 2)), "linewidth": 1}
LINE, MARK = 1.9, 5.0  # points, the width of a line and of its markers
HIDES = 0.005  # of the height of a panel: lines that are nearer to each other hide one another
FEW = 8  # points of which each is marked, and has a tick of its own


class Line(NamedTuple):
    """A line: values by seed and position; without positions, a horizontal level."""

    name: str
    x: Sequence[float]
    y: Array  # [seeds, places]
    dash: str = "solid"


class Panel(NamedTuple):
    title: str
    lines: Sequence[Line]
    goal: float | None = None  # a value to be reached


class Up(NamedTuple):
    """The vertical axis: its label, and whether values are shares, which are shown in percent."""

    label: str
    percent: bool = True

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0


class Axis(NamedTuple):
    label: str
    log: bool = False
    whole: bool = False  # whole numbers only
    names: Sequence[str] = ()  # what stands at 0, 1, 2, ... if these are no numbers
    each: bool = False  # a tick at each place where there is something
    in_bytes: bool = False  # the form of a tick on a logarithmic axis


class LineChart(NamedTuple):
    """Everything that a figure of lines shows, to be drawn here or by the script of a page."""

    panels: Sequence[Panel]
    across: Axis
    up: Up
    kinds: Mapping[str, str] = MappingProxyType({})  # what dashes mean

    @property
    def names(self) -> list[str]:
        """The names of all lines; the place of a name decides its colour."""
        return list(dict.fromkeys(line.name for panel in self.panels for line in panel.lines))

    def draw(self, width: float) -> Figure:
        return lines(self.panels, self.across, self.up, self.kinds, width)


@styled
def lines(
    panels: Sequence[Panel],
    across: Axis,
    up: Up,
    kinds: Mapping[str, str] | None = None,
    width: float = WIDE,
    height: float | None = None,
) -> Figure:
    """Draw means over seeds, of shares in percent, with a band from the lowest to the highest seed.

    Lines of one name have one colour in all panels. ``kinds`` tell what dashes mean: ``{"dashed": "generic"}``.
    """
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    dashes = dict(kinds or {})
    fig, axes = grid(
        len(panels), width, height or _height(len(panels), width), legend_height([*names, *dashes.values()], width)
    )
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_xscale("log" if across.log else "linear")
        ax.margins(x=0.02)
        near = HIDES * _span(panel.lines)
        for place, line in enumerate(panel.lines):
            over = sum(_hides(line, other, near) for other in panel.lines[place + 1 :])
            _line(ax, names.index(line.name), line, up.scale, over)
        if panel.goal is not None:
            ax.axhline(up.scale * panel.goal, **GOAL)
        _ticks(ax, across, panel, width)
        entitle(ax, panel.title)
        if up.percent:
            percent(ax)
    label(fig, axes, across.label, up.label, width)
    entries = [_entry(i, name, panels) for i, name in enumerate(names)]
    goals = [Line2D([], [], **GOAL, label="target")] if any(panel.goal is not None for panel in panels) else []
    legend(fig, [*entries, *(_kind(dash, text) for dash, text in dashes.items()), *goals], width)
    return fig


def _entry(i: int, name: str, panels: Sequence[Panel]) -> Line2D:
    """Return the legend entry of a name; a line that is only a level has no markers."""
    level = all(line.dash == "dotted" for panel in panels for line in panel.lines if line.name == name)
    return handle(i, name, linestyle=":", marker="") if level else handle(i, name)


def _height(panels: int, width: float) -> float:
    if not is_wide(width):
        return 3.4 if panels == 1 else 2.7
    return 4.6 if panels == 1 else 3.0


def _span(shown: Sequence[Line]) -> float:
    """Return the distance from the lowest mean of some lines to the highest."""
    means = np.concatenate([line.y.mean(0) for line in shown if line.y.size] or [np.zeros(1)])
    return float(np.ptp(means[np.isfinite(means)])) if np.isfinite(means).any() else 0.0


def _hides(line: Line, other: Line, near: float) -> bool:
    """Return True if the means of two lines are drawn in the same place, or nearer to each other than ``near``."""
    if list(line.x) != list(other.x) or not line.y.size or not other.y.size:
        return False
    return np.allclose(line.y.mean(0), other.y.mean(0), rtol=0, atol=near, equal_nan=True)


def _line(ax: Axes, i: int, line: Line, scale: float, over: int) -> None:
    """Draw a line; one that ``over`` lines will be drawn over is wider, so that it can be seen below them."""
    if not line.y.size:
        return
    mean = scale * line.y.mean(0)
    if not len(line.x):
        ax.axhline(float(mean[-1]), color=colour(i), linestyle=DASHES[line.dash])
        return
    wider: ArtistStyle = {"linewidth": LINE + 2.2 * over, "markersize": MARK + 3 * over} if over else {}
    ax.plot(line.x, mean, linestyle=DASHES[line.dash], **look(i, len(line.x)), **wider)
    if len(line.y) > 1:
        ax.fill_between(line.x, scale * line.y.min(0), scale * line.y.max(0), color=colour(i), alpha=0.15, linewidth=0)


def _ticks(ax: Axes, across: Axis, panel: Panel, width: float) -> None:
    places = sorted({float(x) for line in panel.lines for x in line.x})
    if across.names:
        ax.set_xticks(range(len(across.names)), [short(name) for name in across.names])
    elif across.each and len(places) <= FEW:
        ax.xaxis.set_major_locator(FixedLocator(places))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    elif across.log:
        log_ticks(ax, 8 if is_wide(width) else 5, size if across.in_bytes else None)
    elif across.whole:
        ax.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _kind(dash: str, text: str) -> Line2D:
    return Line2D([], [], color=MUTED, linestyle=DASHES[dash], label=text)
