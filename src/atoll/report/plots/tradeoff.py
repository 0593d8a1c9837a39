"""Draw scores against bytes, with operations as the size of a marker."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..style import MUTED, PAPER, WIDE, ArtistStyle, colour, mark, set_value, styled
from ..wording import quantity, size
from .axes import entitle, grid, handle, is_wide, label, legend, legend_height, log_ticks, percent
from .lines import Up

LARGEST, SMALLEST = 20.0, 4.0  # points, the diameters of marks
TICKS = 6  # of a logarithmic axis


class Dot(NamedTuple):
    """The costs of one method and the score that it reached."""

    panel: str
    name: str
    sent: float  # bytes, up and down; 0: it has no place on a logarithmic axis, and becomes a level
    score: float
    operations: float
    reached: bool = True  # whether it got as far as it should


@styled
def trade_off(dots: Sequence[Dot], across: str, up: Up, width: float = WIDE) -> Figure:
    """Draw one marker for each method: left and small is cheap, up is a high score, hollow did not reach the target."""
    panels = list(dict.fromkeys(dot.panel for dot in dots)) or [""]
    names = list(dict.fromkeys(dot.name for dot in dots))
    top = max((dot.operations for dot in dots), default=0.0) or 1.0
    extras = [_size(n, top) for n in _sizes(top)]
    if not all(dot.reached for dot in dots):
        extras.append(_plain("target not reached", markerfacecolor=PAPER))
    if not all(dot.sent for dot in dots):
        extras.append(Line2D([], [], color=MUTED, linestyle=":", label="sends nothing"))
    height = (4.2 if len(panels) == 1 else 3.2) if is_wide(width) else 3.2
    fig, axes = grid(len(panels), width, height, legend_height([*names, *[""] * 2 * len(extras)], width))
    for ax, panel in zip(axes, panels, strict=True):
        for dot in sorted((dot for dot in dots if dot.panel == panel), key=lambda dot: -dot.operations):
            _dot(ax, names.index(dot.name), dot, top, up.scale)
        _axis(ax, up.percent)
        entitle(ax, panel if len(panels) > 1 else "")
    label(fig, axes, across, up.label, width)
    legend(fig, [*(handle(i, name, linestyle="") for i, name in enumerate(names)), *extras], width, 1.1)
    return fig


def _dot(ax: Axes, i: int, dot: Dot, top: float, scale: float) -> None:
    score, operations = f"{dot.name}: {scale * dot.score:.4g}", quantity(dot.operations, "FLOP")
    if not dot.sent:
        level = ax.axhline(scale * dot.score, color=colour(i), linestyle=":")
        set_value(level, f"{score}, sends nothing, {operations}")
        return
    face: ArtistStyle = {"markerfacecolor": colour(i) if dot.reached else PAPER, "markeredgecolor": colour(i)}
    where: ArtistStyle = {"marker": mark(i), "markersize": _diameter(dot.operations, top), "markeredgewidth": 1.2}
    (shown,) = ax.plot([dot.sent], [scale * dot.score], linestyle="", alpha=0.85, **where, **face)
    set_value(shown, f"{score}, {size(dot.sent)}, {operations}")


def _axis(ax: Axes, shares: bool) -> None:
    ax.set_xscale("log")
    ax.margins(0.18)
    low, high = ax.get_xlim()
    if high < 10 * low:  # so that there is a power of ten, and so a tick, on the axis
        middle = math.sqrt(low * high)
        ax.set_xlim(middle / 4, middle * 4)
    log_ticks(ax, TICKS, size)
    if shares:
        percent(ax)


def _diameter(operations: float, top: float) -> float:
    """Return the diameter of a marker, whose area is proportional to operations and never too small to see."""
    return max(SMALLEST, LARGEST * math.sqrt(operations / top))


def _sizes(top: float) -> list[float]:
    return [top / 10, top]


def _size(operations: float, top: float) -> Line2D:
    return _plain(quantity(operations, "FLOP"), markersize=_diameter(operations, top), alpha=0.5)


def _plain(label: str, **changes: Any) -> Line2D:
    shown: ArtistStyle = {"color": MUTED, "linestyle": "", "marker": "o", "label": label}
    return Line2D([], [], **shown | changes)
