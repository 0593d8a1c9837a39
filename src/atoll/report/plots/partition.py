"""Draw the rows that each client holds of each class, as bubbles."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..style import GRID, SERIES, WIDE, ArtistStyle, figure, styled
from .axes import LETTER, LONGEST, Array, entitle, is_wide, short

MOST = 150  # clients, or classes, that one chart can show apart
ROOMY = 0.36  # inches between two rows of bubbles, where there is room
TIGHT = 0.095  # and where there is not
EASY = 0.2  # inches, the diameter of a bubble that is easy to see
FILL = 0.94  # of its cell, by the largest bubble
LINE = 0.15  # inches, the height of a tick label


@styled
def holdings(
    counts: Sequence[Sequence[int]],
    clients: Sequence[str],
    classes: Sequence[str],
    width: float = WIDE,
    title: str = "",
    group: str = "class",
) -> Figure:
    """Draw a bubble for every client and class, or other group, whose area is proportional to the rows held.

    Wide charts have clients across, narrow ones down. Beyond 150 clients or classes an even choice of them is shown.
    """
    table = np.array(counts, dtype=float).reshape(len(clients), len(classes))
    some, few = _even(len(clients)), _even(len(classes))
    table = table[np.ix_(some, few)]
    client_axis = _Axis(_counted("client", len(some), len(clients)), [str(clients[i]) for i in some])
    class_axis = _Axis(_counted(group or "samples", len(few), len(classes)), [str(classes[i]) for i in few])
    if is_wide(width):
        return _bubbles(table, client_axis, class_axis, width, title)
    return _bubbles(table.T, class_axis, client_axis, max(width, 0.9 + TIGHT * len(class_axis.names)), title)


class _Axis(NamedTuple):
    title: str
    names: list[str]


def _bubbles(table: Array, across: _Axis, down: _Axis, width: float, title: str) -> Figure:
    """table [across, down]"""
    margin = 0.5 + LETTER * min(LONGEST, max(map(len, down.names)))
    step_x = (width - margin) / len(across.names)
    step_y = min(ROOMY if is_wide(width) else 0.75 * ROOMY, max(TIGHT, 9.0 / len(down.names)))
    fig = figure(width, 1.5 + step_y * max(4, len(down.names)))
    ax = fig.add_subplot()
    entitle(ax, title)
    ax.grid(color=GRID, linewidth=0.5)
    largest = 72 * _largest(table, min(step_x, step_y))  # points
    top = max(1.0, table.max(initial=1.0))
    for count in np.unique(table[table > 0]):  # one marker for each size keeps the SVG small
        x, y = np.nonzero(table == count)
        ax.plot(x, y, **_bubble(largest * math.sqrt(count / top)))
    ax.set_xlim(-0.6, len(across.names) - 0.4)
    ax.set_ylim(len(down.names) - 0.4, -0.6)
    ax.set_xlabel(across.title)
    ax.set_ylabel(down.title)
    _tick_across(ax, across.names, step_x)
    _tick_down(ax, down.names, step_y)
    _sizes(fig, top, largest)
    return fig


def _largest(table: Array, cell: float) -> float:
    """Return the diameter of the largest bubble, in inches.

    It fills its cell. Where cells are small and nine bubbles in ten much smaller than the largest, it may overlap its
    neighbours so that the others can be seen.
    """
    held = table[table > 0]
    common = math.sqrt(np.quantile(held, 0.9) / held.max()) if len(held) else 1.0
    return max(FILL * cell, min(FILL * cell / common, 1.8 * cell, EASY))


def _tick_across(ax: Axes, names: list[str], step: float) -> None:
    labels = [short(name) for name in names]
    upright = max(map(len, labels)) * LETTER > step and max(map(len, labels)) > 3
    every = math.ceil((LINE if upright else max(map(len, labels)) * LETTER + 0.04) / step)
    ax.set_xticks(range(0, len(names), every), labels[::every], rotation=90 if upright else 0)


def _tick_down(ax: Axes, names: list[str], step: float) -> None:
    every = math.ceil(LINE / step)
    ax.set_yticks(range(0, len(names), every), [short(name) for name in names[::every]])


def _bubble(diameter: float) -> ArtistStyle:
    return {
        "linestyle": "",
        "marker": "o",
        "markersize": diameter,
        "color": SERIES[0],
        "alpha": 0.8,
        "markeredgewidth": 0,
    }


def _sizes(fig: Figure, top: float, largest: float) -> None:
    """Draw a legend of three sizes: the largest bubble, about a quarter and about a twentieth of it."""
    shown = sorted({max(1, round(top / part)) for part in (20, 4, 1)})
    handles = [
        Line2D([], [], label=f"{n:,} sample{'s' if n > 1 else ''}", **_bubble(largest * math.sqrt(n / top)))
        for n in shown
    ]
    room = max(1.0, largest / matplotlib.rcParams["legend.fontsize"])  # legends measure in letters
    place: ArtistStyle = {"loc": "outside upper right", "ncols": len(handles)}
    fig.legend(handles=handles, handlelength=room, handleheight=room, handletextpad=0.5, **place)


def _even(n: int) -> list[int]:
    return list(range(n)) if n <= MOST else [i * n // MOST for i in range(MOST)]


def _counted(noun: str, shown: int, total: int) -> str:
    return noun if shown == total else f"{noun} ({shown} of {total:,} shown)"
