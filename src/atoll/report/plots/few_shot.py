"""Draw the score of new clients against their number of rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ...core.criterion import Criterion
from ..style import WIDE, colour, figure, mark, styled

if TYPE_CHECKING:
    from ...inference.adaptation_result import Point

LOOKS = {"personal": "-", "alone": "-", "shared": "--"}


@styled
def curve(points: Sequence["Point"], score: Criterion, rows_title: str, width: float = WIDE) -> Figure:
    """Draw a line for each kind of model; error bars are one standard deviation over repeats."""
    fig = figure(width, 4.2)
    ax = fig.add_subplot()
    at = range(len(points))
    for i, (kind, dashes) in enumerate(LOOKS.items()):
        stats = [getattr(point, kind) for point in points]
        if None in stats:
            continue
        means, bars = [score.scale * s.mean for s in stats], [score.scale * (s.std or 0.0) for s in stats]
        ax.errorbar(at, means, yerr=bars, color=colour(i), marker=mark(i), linestyle=dashes, capsize=3, label=kind)
    ax.set_xticks(list(at), [point.name for point in points])
    ax.set_xlabel(f"training {rows_title}" if rows_title.endswith("class") else rows_title)
    ax.set_ylabel(f"test {score.title} of new clients{score.unit}")
    ax.legend()
    return fig
