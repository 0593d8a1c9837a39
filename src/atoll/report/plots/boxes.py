"""Draw box plots of one quantity over clients."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..style import INK, PAPER, WIDE, colour, set_value, styled
from ..wording import count
from .axes import LONGEST, NAME, Array, columns, entitle, grid, is_wide, label, short
from .lines import Up


class Box(NamedTuple):
    """The scores of one method's clients."""

    panel: str
    name: str
    values: Array
    lowest: str = ""  # the client with the lowest score


@styled
def boxes(found: Sequence[Box], quantity: Up, width: float = WIDE) -> Figure:
    """Draw quartiles, whiskers to 1.5 times the box, a diamond at the mean; a panel for each case."""
    panels = list(dict.fromkeys(box.panel for box in found))
    names = list(dict.fromkeys(box.name for box in found))
    fig, axes = grid(len(panels), width, 0.9 + 0.42 * len(names) + 0.2 * (len(panels) > 1))
    across = columns(len(panels), width)
    for at, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
        for box in found:
            if box.panel == panel:
                _box(ax, names.index(box.name), box, quantity.scale * box.values)
        _name(ax, names if at % across == 0 else [""] * len(names), width)
        entitle(ax, panel if len(panels) > 1 else "")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    label(fig, axes, quantity.label, "", width)
    return fig


def _name(ax: Axes, names: Sequence[str], width: float) -> None:
    ax.set_yticks(range(len(names)), [short(name, NAME if is_wide(width) else LONGEST) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


def _box(ax: Axes, i: int, box: Box, values: Array) -> None:
    if not len(values):
        return
    parts = ax.boxplot(
        [values],
        positions=[i],
        widths=0.56,
        orientation="horizontal",
        manage_ticks=False,
        patch_artist=True,
        showmeans=True,
        boxprops={"facecolor": colour(i), "alpha": 0.45, "edgecolor": colour(i)},
        whiskerprops={"color": colour(i)},
        capprops={"color": colour(i)},
        medianprops={"color": INK, "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": PAPER, "markeredgecolor": INK, "markersize": 5},
        flierprops={"marker": "o", "markerfacecolor": "none", "markeredgecolor": colour(i), "markersize": 3.5},
    )
    text = _describe(box, values)
    for artists in parts.values():
        for artist in artists:
            set_value(artist, text)


def _describe(box: Box, values: Array) -> str:
    low, first, middle, third = np.percentile(values, [0, 25, 50, 75])
    return (
        f"{box.name}: median {middle:.2f}, middle half {first:.2f} to {third:.2f}, mean {values.mean():.2f}, "
        f"lowest {low:.2f}{f' ({box.lowest})' if box.lowest else ''}, {count(len(values), 'client')}"
    )
