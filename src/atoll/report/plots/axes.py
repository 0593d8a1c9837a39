"""Common parts of figures: panels, names, legends, axes."""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from ..style import INK, NARROW, PAPER, WIDE, ArtistStyle, colour, figure, mark

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

LONGEST = 18  # letters of a tick label
NAME = 34  # letters of a method's name
LETTER = 0.078  # inches, the width of a wide letter of a tick label
LINE = 0.2  # inches, the height of an entry of a legend
GAP = 0.1  # inches, around the panels of a figure with a label of its own
ABREAST = 3  # panels side by side, at most


def is_wide(width: float) -> bool:
    return width >= (WIDE + NARROW) / 2


def columns(panels: int, width: float) -> int:
    """Return the number of panels in a row; four panels are drawn two by two."""
    if not is_wide(width):
        return 1
    return 2 if panels == 4 else min(panels, ABREAST)


def grid(
    panels: int, width: float, height: float, extra: float = 0.0, abreast: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Make a figure with ``panels`` panels of the given height; ``extra`` inches are for a legend below."""
    across = abreast or columns(panels, width)
    down = math.ceil(panels / across)
    fig = figure(width, height * down + extra)
    axes = fig.subplots(down, across, squeeze=False).ravel().tolist()
    for spare in axes[panels:]:
        spare.set_visible(False)
    return fig, axes[:panels]


def entitle(ax: Axes, title: str) -> None:
    """Write the name of a panel, shortened to the room there is; a single panel has no name."""
    if title:
        ax.set_title(short(title, _room(ax)), fontsize=9.5, color=INK, loc="left")


def entitle_figure(fig: Figure, title: str) -> None:
    """Write a title above a whole figure, in lines that fit its width."""
    lines = textwrap.wrap(title, int(fig.get_figwidth() / LETTER))
    fig.suptitle("\n".join(lines), fontsize=10.5, color=INK, x=0.01, ha="left")


def _room(ax: Axes) -> int:
    """Return the number of letters that fit above a panel."""
    spec, fig = ax.get_subplotspec(), ax.get_figure(root=True)
    assert spec is not None
    assert fig is not None
    width = fig.get_figwidth()
    across = spec.get_gridspec().ncols
    beside = 1.7 if is_wide(width) or across > 1 else 0.6  # inches that a legend or a scale takes
    return int((width - beside) / across / LETTER)


def label(fig: Figure, axes: Sequence[Axes], across: str, up: str, width: float) -> None:
    """Write an axis label once for all panels; in a narrow figure on the last panel, because the legend is below."""
    if len(axes) == 1 or not is_wide(width):
        axes[-1].set_xlabel(across)
    else:
        fig.supxlabel(across, fontsize=9.5)
    if len(axes) == 1:
        axes[0].set_ylabel(up)
    else:
        fig.supylabel(up, fontsize=9.5)
        _widen_gaps(fig)


def _widen_gaps(fig: Figure) -> None:
    """Leave room between a label of the whole figure and tick labels, whose font in a page may be wider than here."""
    engine = fig.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(w_pad=GAP)


def look(i: int, points: int) -> ArtistStyle:
    """Return the style of a line: colour, and about eight markers at other places than those of its neighbours."""
    step = max(1, points // 8)
    return {
        "color": colour(i),
        "marker": mark(i),
        "markevery": (i % step, step),
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
    }


def handle(i: int, name: str, **changes: Any) -> Line2D:
    shown: ArtistStyle = {"color": colour(i), "marker": mark(i), "label": short(name, NAME)}
    return Line2D([], [], **shown | changes)


def legend(fig: Figure, entries: Sequence[Line2D], width: float, spacing: float = 0.5, title: str = "") -> None:
    """Draw the legend, at the right of a wide figure or below a narrow one; ``spacing`` is in letters."""
    if not entries:
        return
    heading = title or None
    if is_wide(width):
        fig.legend(
            handles=entries,
            loc="outside right upper",
            ncols=1 + len(entries) // 20,
            labelspacing=spacing,
            title=heading,
        )
    else:
        fig.legend(
            handles=entries,
            loc="outside lower left",
            ncols=_legend_columns([str(entry.get_label()) for entry in entries]),
            columnspacing=1.2,
            labelspacing=spacing,
            title=heading,
        )


def legend_height(names: Sequence[str], width: float) -> float:
    """Return the inches to add to a narrow figure for the legend below it."""
    if is_wide(width):
        return 0.0
    return LINE * (2 + math.ceil(len(names) / _legend_columns([short(name, NAME) for name in names])))


def _legend_columns(names: Sequence[str]) -> int:
    return 2 if max(map(len, names), default=0) <= 16 else 1


def log_ticks(ax: Axes, most: int, form: Callable[[float], str] | None = None) -> None:
    """Set ticks at powers of ten, or at 1, 2 and 5 times them if there are few."""
    low, high = ax.get_xlim()
    steps = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(subs=steps, numticks=most))
    ax.xaxis.set_minor_formatter(NullFormatter())
    if form:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: form(v)))


def percent(ax: Axes) -> None:
    """Format an axis in percent and limit it to the data."""
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, -1.0), min(high, 101.0))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def short(name: str, longest: int = LONGEST) -> str:
    """Shorten a long name in its middle, because names differ at their ends."""
    if len(name) <= longest:
        return name
    tail = longest // 2 - 1
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"
