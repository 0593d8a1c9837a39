"""Draw the norms of class weight vectors against the shares of their classes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from ..style import GRID, INK, MUTED, NARROW, PAPER, SERIES, WIDE, figure, styled
from .axes import Array, entitle, is_wide, legend, short

SHOWN = 3  # draws whose classes are shown one by one
OPPOSITE = "share and norm on opposite sides of the average"
ALIKE = "both above or both below the average"
AREA = 420.0  # square points, of the circle of the largest share


class Draw(NamedTuple):
    """Class shares and weight norms of one model; both sum to 1."""

    panel: str
    shares: Array  # [classes]
    moduli: Array

    @property
    def contrary(self) -> NDArray[np.bool_]:
        """Count classes that are more frequent than average with a longer vector, or rarer with a shorter one."""
        middle = 1 / len(self.shares)
        return (self.shares - middle) * (self.moduli - middle) > 0


@styled
def moduli(draws: Sequence[Draw], classes: Sequence[str], width: float = WIDE) -> Figure:
    """Draw the first models as circles and all of them as points, one row for each panel."""
    panels = list(dict.fromkeys(draw.panel for draw in draws))
    wide = is_wide(width)
    down, across = (len(panels), 2) if wide else (2 * len(panels), 1)
    fig = figure(width, down * (3.1 if wide else 2.9) + 0.5)
    axes = fig.subplots(down, across, squeeze=False, width_ratios=(1.5, 1) if wide else None).ravel()
    for at, panel in enumerate(panels):
        own = [draw for draw in draws if draw.panel == panel]
        title = panel if len(panels) > 1 else ""
        _circles(axes[2 * at], own[:SHOWN], classes, title, 1 if wide else 0)
        _scatter(axes[2 * at + 1], own)
    legend(fig, [_sign(SERIES[0], OPPOSITE), _sign(SERIES[1], ALIKE)], NARROW)  # below, in both widths
    return fig


def _sign(shade: str, words: str) -> Line2D:
    return Line2D([], [], linestyle="", marker="o", color=shade, label=words)


def _circles(ax: Axes, draws: Sequence[Draw], classes: Sequence[str], title: str, digits: int) -> None:
    """Draw the classes of one model as circles; the number below is the class's share of all norms."""
    top = max(float(draw.shares.max()) for draw in draws)
    small = len(classes) > 12
    for row, draw in enumerate(draws):
        for c, (share, modulus) in enumerate(zip(draw.shares, draw.moduli, strict=True)):
            face = SERIES[0] if share > 0 else PAPER
            ax.scatter(c, row, s=max(AREA * share / top, 6.0), facecolor=face, edgecolor=SERIES[0], linewidth=0.8)
            if not small:
                shade = SERIES[1] if draw.contrary[c] else INK
                ax.text(
                    c, row + 0.42, f"{100 * modulus:.{digits}f}", ha="center", va="center", fontsize=7.5, color=shade
                )
    ax.set_xticks(
        range(len(classes)), [short(name, 10) for name in classes], fontsize=8, rotation=90 if _long(classes) else 0
    )
    ax.set_yticks(range(len(draws)), [f"model {i + 1}" for i in range(len(draws))])
    ax.set_ylim(len(draws) - 0.3, -0.55)
    ax.set_xlim(-0.7, len(classes) - 0.3)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.set_xlabel(
        "class; circle: its share of the samples,\nnumber: share of its weight vector in the sum of norms, %",
        fontsize=8.5,
    )
    entitle(ax, title)


def _long(classes: Sequence[str]) -> bool:
    return max(map(len, classes)) > 4


def _scatter(ax: Axes, draws: Sequence[Draw]) -> None:
    x, y = (np.concatenate([getattr(draw, name) for draw in draws]) for name in ("shares", "moduli"))
    contrary = np.concatenate([draw.contrary for draw in draws])
    for chosen, shade in ((~contrary, SERIES[0]), (contrary, SERIES[1])):
        ax.plot(100 * x[chosen], 100 * y[chosen], linestyle="", marker="o", markersize=3, color=shade, alpha=0.6)
    even = 100 / len(draws[0].shares)
    ax.axhline(even, color=MUTED, linewidth=0.8)
    ax.axvline(even, color=MUTED, linewidth=0.8)
    ax.grid(color=GRID)
    ax.set_xlabel("share of a class in the samples, %")
    ax.set_ylabel("share of its weight vector\nin the sum of norms, %")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
