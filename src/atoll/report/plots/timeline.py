"""Draw the work of server and clients as bars in time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..style import GRID, MUTED, PAPER, SERIES, WIDE, ArtistStyle, figure, styled
from .axes import is_wide, short

LOOKS: dict[str, ArtistStyle] = {
    "download": {"facecolor": SERIES[5]},
    "generic training": {"facecolor": SERIES[0]},
    "personal training": {"facecolor": SERIES[1]},
    "upload": {"facecolor": SERIES[2]},
    "waiting": {"facecolor": PAPER, "hatch": "////", "edgecolor": GRID},
}
MOVING = ("download", "upload")


class Bar(NamedTuple):
    panel: str
    row: str
    what: str  # a key of LOOKS
    start: float  # seconds
    end: float


@styled
def timeline(bars: Sequence[Bar], ends: Mapping[str, Sequence[float]], width: float = WIDE) -> Figure:
    """Draw a panel for each schedule on one scale of time; ``ends`` are the ends of rounds."""
    panels = list(dict.fromkeys(bar.panel for bar in bars))
    rows = list(dict.fromkeys(bar.row for bar in bars))
    fig = figure(width, 0.75 + len(panels) * (0.45 + 0.34 * len(rows)) + (0 if is_wide(width) else 0.4))
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=True):
        _panel(ax, [bar for bar in bars if bar.panel == panel], rows)
        for end in ends[panel]:
            ax.axvline(end, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)))
        ax.set_title(panel, fontsize=9.5, loc="left")
    axes[-1].set_xlabel("simulated seconds (dashed: the end of a round)")
    fig.legend(
        handles=[_patch(what) for what in LOOKS],
        loc="outside upper right",
        ncols=5 if is_wide(width) else 2,
        columnspacing=1.2,
    )
    return fig


def _patch(what: str) -> Patch:
    style: ArtistStyle = {"edgecolor": PAPER} | LOOKS[what]
    return Patch(label=what, **style)


def _panel(ax: Axes, bars: Sequence[Bar], rows: Sequence[str]) -> None:
    """Draw one panel. Messages are thinner and lower than work, because both may overlap in time."""
    for bar in bars:
        moving = bar.what in MOVING
        at, height = rows.index(bar.row) + (0.25 if moving else -0.12), 0.24 if moving else 0.46
        looks: ArtistStyle = {"edgecolor": PAPER, "linewidth": 0.6} | LOOKS[bar.what]
        ax.barh(at, bar.end - bar.start, height, bar.start, **looks)
    ax.set_yticks(range(len(rows)), [short(row) for row in rows])
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
