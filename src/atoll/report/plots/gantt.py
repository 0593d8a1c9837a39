"""Who does what when: bars in time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..style import GRID, MUTED, PAPER, SERIES, WIDE, figure, styled
from .shared import is_wide, short

LOOKS: dict[str, dict[str, Any]] = {
    "download": {"facecolor": SERIES[5]},
    "generic training": {"facecolor": SERIES[0]},
    "personal training": {"facecolor": SERIES[1]},
    "upload": {"facecolor": SERIES[2]},
    "waiting": {"facecolor": PAPER, "hatch": "////", "edgecolor": GRID},
}


class Bar(NamedTuple):
    panel: str
    row: str
    what: str  # a key of LOOKS
    start: float  # seconds
    end: float


@styled
def timeline(bars: Sequence[Bar], ends: Mapping[str, Sequence[float]], width: float = WIDE) -> Figure:
    """A panel for each way of working, above one another on one scale of time; ``ends`` are those of rounds."""
    panels = list(dict.fromkeys(bar.panel for bar in bars))
    rows = list(dict.fromkeys(bar.row for bar in bars))
    fig = figure(width, 0.75 + len(panels) * (0.45 + 0.34 * len(rows)) + (0 if is_wide(width) else 0.4))
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=True):
        for bar in bars:
            if bar.panel == panel and bar.end > bar.start:
                uploading = bar.what == "upload"  # others may be at work at the same time: thinner, below
                height, at = (0.24, rows.index(bar.row) + 0.25) if uploading else (0.46, rows.index(bar.row) - 0.12)
                ax.barh(
                    at,
                    bar.end - bar.start,
                    height,
                    bar.start,
                    **{"edgecolor": PAPER, "linewidth": 0.6} | LOOKS[bar.what],
                )
        for end in ends[panel]:
            ax.axvline(end, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)))
        ax.set_yticks(range(len(rows)), [short(row) for row in rows])
        ax.set_ylim(len(rows) - 0.45, -0.55)
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.set_title(panel, fontsize=9.5, loc="left")
    axes[-1].set_xlabel("simulated seconds; dashed: the server has aggregated a round")
    fig.legend(
        handles=[Patch(label=what, **{"edgecolor": PAPER} | look) for what, look in LOOKS.items()],
        loc="outside upper right",
        ncols=5 if is_wide(width) else 2,
        columnspacing=1.2,
    )
    return fig
