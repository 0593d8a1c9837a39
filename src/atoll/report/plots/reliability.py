"""Draw reliability diagrams: accuracy against confidence, one panel for each client."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ...core.decision_scores import Bin
from ..style import MUTED, SERIES, WIDE, figure, styled
from .axes import entitle, is_wide

ACROSS = 4  # panels in a row
AREA = 180.0  # square points, of the circle of a bin with all rows


@styled
def reliability(bins: Mapping[str, Sequence[Bin]], width: float = WIDE) -> Figure:
    """Draw a panel for each client: circles are bins of confidence, their areas the shares of rows.

    Args:
        bins: the bins of each client.
        width: width of the figure in inches.
    """
    across = min(len(bins), ACROSS if is_wide(width) else 2)
    down = math.ceil(len(bins) / across)
    fig = figure(width, down * width / across * 0.95)
    axes = fig.subplots(down, across, squeeze=False).ravel()
    for ax, (client, own) in zip(axes, bins.items(), strict=False):
        rows = sum(bin.rows for bin in own)
        ax.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8)
        ax.scatter(
            [100 * bin.confidence for bin in own],
            [100 * bin.accuracy for bin in own],
            s=[max(AREA * bin.rows / rows, 6.0) for bin in own],
            color=SERIES[0],
        )
        ax.set_xlim(-4, 104)
        ax.set_ylim(-4, 104)
        ax.set_xlabel("confidence, %")
        ax.set_ylabel("accuracy, %")
        entitle(ax, f"{client}, {rows} samples")
    for ax in axes[len(bins) :]:
        ax.set_visible(False)
    return fig
