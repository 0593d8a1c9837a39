"""Draw tables of classes by classes as heat maps."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from ..style import WIDE, figure, styled
from .axes import Array, entitle, is_wide, short

SHADES = "cividis"  # even steps of lightness, and the same to colour-blind eyes
MOST = 40  # classes of a map; of more, an even choice
ABREAST = 4


class Matrix(NamedTuple):
    title: str
    values: Array  # [classes, classes], between 0 and 1
    down: str = "true class"


@styled
def matrices(groups: Sequence[Sequence[Matrix]], classes: Sequence[str], width: float = WIDE) -> Figure:
    """Draw each group as a column of a wide figure or a row of a narrow one; all maps share one colour scale."""
    across = is_wide(width) and len(groups) <= ABREAST
    table = [list(column) for column in zip(*groups, strict=True)] if across else [list(group) for group in groups]
    step = (width - 0.9) / len(table[0])
    fig = figure(width, len(table) * (min(step, 4.2) + 0.35) + 0.4)
    axes = fig.subplots(len(table), len(table[0]), squeeze=False)
    chosen = range(0, len(classes), -(-len(classes) // MOST))
    norm = _shades(groups)
    for down, (places, row) in enumerate(zip(axes, table, strict=True)):
        for at, (ax, matrix) in enumerate(zip(places, row, strict=True)):
            shown = _map(ax, matrix, [short(classes[c], 10) for c in chosen], list(chosen), norm, at == 0)
            ax.set_xlabel("class" if down == len(table) - 1 or not across else "", fontsize=8.5)
            ax.set_ylabel(matrix.down if at == 0 else "", fontsize=8.5)
    bar = fig.colorbar(shown, ax=axes, shrink=0.6 if len(table) > 1 else 0.9, aspect=30, pad=0.015)
    bar.set_label("probability", fontsize=8.5)
    bar.outline.set_visible(False)
    return fig


def _shades(groups: Sequence[Sequence[Matrix]]) -> PowerNorm:
    """Return shades from the smallest to the largest value of all maps, finer among small ones."""
    values = [m.values for group in groups for m in group]
    return PowerNorm(0.5, min(float(v.min()) for v in values), max(float(v.max()) for v in values))


def _map(ax: Axes, matrix: Matrix, names: list[str], chosen: list[int], norm: PowerNorm, first: bool) -> QuadMesh:
    """Draw cells as paths: an embedded image would be one more thing for a page to load."""
    cells = matrix.values[chosen][:, chosen]
    shown = ax.pcolormesh(cells, cmap=SHADES, norm=norm, edgecolors="none", linewidth=0)
    every = -(-len(names) // 20)
    places = [i + 0.5 for i in range(0, len(names), every)]
    upright = max(map(len, names)) > 2
    ax.set_xticks(places, names[::every], fontsize=8, rotation=90 if upright else 0)
    ax.set_yticks(places, names[::every] if first else [], fontsize=8) if first else ax.set_yticks([])
    ax.tick_params(length=0)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    entitle(ax, matrix.title)
    return shown
