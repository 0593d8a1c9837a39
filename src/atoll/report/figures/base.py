"""Define the input of figures, runs by case and method, and their result, drawn on demand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from ...storage.run_reader import Document, Run
from ..groups import groups, settings
from ..plots.axes import entitle_figure
from ..plots.lines import LineChart
from ..sheets import Sheet

RunsByCase = Mapping[tuple[str, str], Sequence[Run]]  # case and method: its seeds


class FigureSpec(NamedTuple):
    """A figure with its caption, drawn on demand in a given width."""

    name: str  # of the files, without a suffix
    caption: str
    draw: Callable[[float], Figure]
    numbers: Sheet | None = None  # the numbers behind the figure
    inline: bool = True  # whether it can be part of a page; photographs cannot
    lines: LineChart | None = None  # what a page can draw itself, with values under the pointer


def line_figure(name: str, caption: str, chart: LineChart, numbers: Sheet | None = None) -> FigureSpec:
    """Make a figure of lines, which pages show with their values under the pointer."""
    return FigureSpec(name, caption, chart.draw, numbers, lines=chart)


def head(one: FigureSpec, words: str) -> FigureSpec:
    """Write words above a figure, and add them to its caption and to the title of its numbers."""

    def draw(width: float) -> Figure:
        drawn = one.draw(width)
        entitle_figure(drawn, words)
        return drawn

    numbers = one.numbers and one.numbers._replace(title=f"{one.numbers.title} ({words[:1].lower()}{words[1:]})")
    return one._replace(caption=f"{one.caption} {words}.", draw=draw, numbers=numbers)


def by_case(runs: Iterable[Run]) -> RunsByCase:
    """Group runs by case (a setting in which accuracies may be compared) and method, the best method first."""
    found: dict[tuple[str, str], Sequence[Run]] = {}
    for members in settings(runs):
        summary = members[0].summary
        case = title(summary)
        if any(case == other for other, _ in found):
            case = f"{case}, split {summary['split']}"
        found |= {(case, group.name): group.runs for group in groups(members)}
    return found


def title(summary: Document) -> str:
    """Return data, partition and number of clients of a run."""
    clients = int(summary["clients"])
    return f"{summary['data']}, {summary['partition']}, {clients:,} client{'' if clients == 1 else 's'}"


def cases(shown: RunsByCase) -> list[str]:
    """Return the cases in their order."""
    return list(dict.fromkeys(case for case, _ in shown))


def panel(shown: RunsByCase, case: str) -> str:
    """Return the title of a case's panel; empty if there is only one case."""
    return case if len(cases(shown)) > 1 else ""


def pair(shown: RunsByCase, case: str, method: str) -> str:
    """Return the title of a panel of one case and one method, without parts that all panels share."""
    several = len({name for _, name in shown}) > 1
    words = [method if several or len(shown) == 1 else "", panel(shown, case)]
    return ": ".join(filter(None, words))
