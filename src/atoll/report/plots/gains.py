"""Draw what each client gains over training alone, one panel for each method."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import INK, SERIES, WIDE, set_value, styled
from .axes import entitle, grid, label, short

GAIN, LOSS = SERIES[0], SERIES[1]
NAMED = 8  # clients, at most, whose names fit below the bars


class Gains(NamedTuple):
    """The gains of one method's clients, the smallest first, with the title of their panel."""

    title: str
    by_client: Mapping[str, float]


@styled
def gains(found: Sequence[Gains], quantity: str, width: float = WIDE) -> Figure:
    """Draw a bar for each client, sorted by its gain; bars of clients that lose are orange and point down.

    Few clients have their names below, and the same order in all panels: that of the first.

    Args:
        found: a panel for each method.
        quantity: label of the vertical axis.
        width: width of the figure in inches.
    """
    named = max(len(one.by_client) for one in found) <= NAMED
    fig, axes = grid(len(found), width, 2.5)
    low = min(0.0, *(gap for one in found for gap in one.by_client.values()))
    high = max(0.0, *(gap for one in found for gap in one.by_client.values()))
    room = 0.18 * ((high - low) or 1.0)
    order = dict.fromkeys(name for one in found for name in one.by_client)
    for ax, one in zip(axes, found, strict=True):
        shown = [name for name in order if name in one.by_client] if named else list(one.by_client)
        _bars(ax, {name: one.by_client[name] for name in shown})
        ax.set_ylim(low - room, high + room)
        entitle(ax, one.title)
        names = [short(name, 12) for name in shown] if named else []
        ax.set_xticks(range(len(names)), names)
    label(fig, axes, "" if named else "clients, sorted by their gain", quantity, width)
    return fig


def _bars(ax: Axes, by_client: Mapping[str, float]) -> None:
    gaps = list(by_client.values())
    colours = [LOSS if gap < 0 else GAIN for gap in gaps]
    bars = ax.bar(range(len(gaps)), gaps, width=0.8 if len(gaps) <= NAMED else 1.0, color=colours)
    for bar, (client, gap) in zip(bars, by_client.items(), strict=True):
        set_value(bar, f"client {client}: {gap:+.2f}")
    lose, gain = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    ax.text(0.02, 0.05, f"{lose} lose", color=LOSS, transform=ax.transAxes)
    ax.text(0.98, 0.92, f"{gain} gain", color=GAIN, transform=ax.transAxes, ha="right")
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.grid(visible=False, axis="x")
