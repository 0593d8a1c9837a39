"""Draw what a round costs as registered clients, features, classes and weights grow, from figures that were measured.

Lines are the cost of a round over that of a round with 100 registered clients, or over that of FedAvg at the same
number of features, classes and weights. A panel whose figures were not measured is left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from atoll.report.style import colour, figure, mark, save, styled

Points = list[tuple[float, float]]
COLUMNS = 2  # panels in a row


class Panel(NamedTuple):
    """One picture: what grows, what is drawn, and the figures of each line with the sizes that they belong to."""

    across: str
    up: str
    lines: Mapping[str, Sequence[tuple[float, str]]]
    start: float | None = None  # a size whose cost is 1 by definition


PANELS = (
    Panel(
        "registered clients", "round over one with 100",
        {"FedAvg": [(n, f"growth.registered_clients_{n}") for n in (1_000, 10_000, 100_000)]}, start=100,
    ),
    Panel(
        "features", "round over FedAvg's",
        {
            "DC-PFL, 10 classes": [(64, "cost.dcpfl_64x10"), (500, "cost.dcpfl_500x10")],
            "DC-PFL, 100 classes": [(64, "cost.dcpfl_64x100"), (500, "cost.dcpfl_500x100")],
        },
    ),
    Panel(
        "classes", "round over FedAvg's",
        {
            "DC-PFL, 64 features": [(10, "cost.dcpfl_64x10"), (100, "cost.dcpfl_64x100")],
            "DC-PFL, 500 features": [(10, "cost.dcpfl_500x10"), (100, "cost.dcpfl_500x100")],
        },
    ),
    Panel("weights", "round over FedAvg's", {"SCD": [(1e5, "cost.scd_1e5"), (1e6, "cost.scd_1e6")]}),
)  # fmt: skip


def points(panel: Panel, figures: Mapping[str, float]) -> dict[str, Points]:
    """Return the points of each line of a panel that was measured."""
    found = {
        name: [(size, figures[figure]) for size, figure in line if figure in figures]
        for name, line in panel.lines.items()
    }
    first: Points = [] if panel.start is None else [(panel.start, 1.0)]
    return {name: first + line for name, line in found.items() if line}


def measured(figures: Mapping[str, float]) -> list[tuple[Panel, dict[str, Points]]]:
    """Return the panels that there are figures for, with their lines."""
    return [(panel, lines) for panel in PANELS if (lines := points(panel, figures))]


def draw(figures: Mapping[str, float], path: Path) -> None:
    """Draw the panels that were measured, if there are any, into an SVG file.

    Args:
        figures: what was measured, by name.
        path: the file.
    """
    if drawn := measured(figures):
        save(_picture(drawn), path)


@styled
def _picture(drawn: Sequence[tuple[Panel, Mapping[str, Points]]]) -> Figure:
    rows = -(-len(drawn) // COLUMNS)
    picture = figure(4.0 * min(COLUMNS, len(drawn)), 2.8 * rows)
    for at, (panel, lines) in enumerate(drawn):
        axes = picture.add_subplot(rows, min(COLUMNS, len(drawn)), at + 1)
        for number, (name, line) in enumerate(lines.items()):
            axes.plot(*zip(*line, strict=True), color=colour(number), marker=mark(number), label=name)
        axes.set(xlabel=panel.across, ylabel=panel.up, xscale="log")
        sizes = sorted({size for line in lines.values() for size, _ in line})
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 1.15 * max(cost for line in lines.values() for _, cost in line))
        axes.legend()
    return picture
