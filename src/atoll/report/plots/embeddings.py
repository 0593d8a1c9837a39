"""Draw features in the plane: rows as points in the colour of their class, class weight vectors as crosses."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import INK, PAPER, WIDE, class_look, styled
from .axes import Array, Labels, entitle, grid, handle, legend, legend_height, short

MOST = 50  # classes that look different
LONE = 7.8  # inches: a single map is no wider, as it is about half as high


class Cloud(NamedTuple):
    """The features of some rows under one model."""

    title: str
    note: str  # in numbers, below the panel
    xy: Array  # [rows, 2]
    labels: Labels  # [rows]
    heads: Array | None = None  # [classes, 2]: where the weight vector of each class lies


@styled
def points(clouds: Sequence[Cloud], classes: Sequence[str], width: float = WIDE) -> Figure:
    """Draw a panel for each model. Axes have no scale, because such maps preserve only neighbourhoods."""
    held = sorted({int(c) for cloud in clouds for c in cloud.labels})
    names = [classes[c] for c in held]
    if len(clouds) == 1:
        width = min(width, LONE)
    fig, axes = grid(len(clouds), width, 4.4 if len(clouds) < 3 else 3.5, legend_height([*names, "class"], width))
    for ax, cloud in zip(axes, clouds, strict=True):
        _cloud(ax, cloud, classes)
        entitle(ax, cloud.title)
    entries = [handle(c, classes[c], linestyle="", **class_look(c)) for c in held[:MOST]]
    if any(cloud.heads is not None for cloud in clouds):
        entries.append(handle(0, "weight vector", linestyle="", color=INK, marker="X", markersize=8))
    legend(fig, entries, width, title="class")
    return fig


def _cloud(ax: Axes, cloud: Cloud, classes: Sequence[str]) -> None:
    for c in np.unique(cloud.labels):
        x, y = cloud.xy[cloud.labels == c].T
        face = class_look(int(c)) | {"markeredgecolor": PAPER, "markeredgewidth": 0.3}
        ax.plot(x, y, linestyle="", markersize=4, alpha=0.8, **face)
        if cloud.heads is not None:
            _head(ax, cloud.heads[int(c)], class_look(int(c))["color"], classes[int(c)])
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(True)
    ax.margins(0.06)
    ax.set_xlabel(cloud.note, fontsize=8.5)


def _head(ax: Axes, at: Array, shade: str, name: str) -> None:
    ax.plot(*at, marker="X", markersize=11, color=shade, markeredgecolor=INK, markeredgewidth=1.2, zorder=5)
    label = ax.annotate(
        short(name, 10), (float(at[0]), float(at[1])), (7, 5), textcoords="offset points", fontsize=8.5, zorder=6
    )
    label.set_path_effects([effects.withStroke(linewidth=2.5, foreground=PAPER)])
