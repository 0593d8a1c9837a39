"""Draw images beside the output of a network for them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..style import WIDE, figure, styled
from .axes import Array, short

TILE = 0.85  # inches


class Pair(NamedTuple):
    """Images of one client and the output of a network for them: [rows, height, width, 1 or 3], from 0 to 1."""

    title: str
    before: Array
    after: Array


@styled
def pixels(pairs: Sequence[Pair], before: str, after: str, width: float = WIDE) -> Figure:
    """Draw two rows of images for each client."""
    count = max(1, min(max(len(pair.before) for pair in pairs), int((width - 1.6) / TILE)))
    fig = figure(min(width, 1.2 + 1.08 * TILE * count), 2 * TILE * len(pairs) + 0.3 * len(pairs))
    axes = fig.subplots(2 * len(pairs), count, squeeze=False)
    for at, pair in enumerate(pairs):
        for line, (what, images) in enumerate(((before, pair.before), (after, pair.after))):
            for ax, image in zip(axes[2 * at + line], images, strict=False):
                ax.imshow(np.clip(image, 0, 1).squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes[2 * at + line][0].set_ylabel(what, rotation=0, ha="right", va="center", fontsize=8.5)
        axes[2 * at][0].set_title(short(pair.title, 44), loc="left", fontsize=9.5)
    for ax in axes.ravel():
        ax.set_xticks([])
        ax.set_yticks([])
        for side in ax.spines.values():
            side.set_visible(False)
    return fig
