"""Runs as figures take them, and figures as pages and files take them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from ...storage.run_reader import Document, Run
from ..groups import groups, settings
from ..sheets import Sheet

RunsByCase = Mapping[tuple[str, str], Sequence[Run]]  # case and method: its seeds


class FigureSpec(NamedTuple):
    """A figure that is drawn when somebody wants it, in the width that they want."""

    name: str  # of its files, without an ending
    caption: str
    draw: Callable[[float], Figure]
    numbers: Sheet | None = None  # what the figure shows, or what goes with it
    inline: bool = True  # whether it can be part of a page; photographs cannot


def by_case(runs: Iterable[Run]) -> RunsByCase:
    """Runs whose accuracies may be compared are a case; the best method comes first."""
    found: dict[tuple[str, str], Sequence[Run]] = {}
    for members in settings(runs):
        summary = members[0].summary
        case = title(summary)
        if any(case == other for other, _ in found):
            case = f"{case}, split {summary['split']}"
        found |= {(case, group.name): group.runs for group in groups(members)}
    return found


def title(summary: Document) -> str:
    clients = int(summary["clients"])
    return f"{summary['data']}, {summary['partition']}, {clients:,} client{'' if clients == 1 else 's'}"


def cases(shown: RunsByCase) -> list[str]:
    return list(dict.fromkeys(case for case, _ in shown))


def panel(shown: RunsByCase, case: str) -> str:
    """The title of a case's panel; a lone one needs none."""
    return case if len(cases(shown)) > 1 else ""


def pair(shown: RunsByCase, case: str, method: str) -> str:
    """The title of a panel of one case and one method: what tells it from the others."""
    several = len({name for _, name in shown}) > 1
    words = [method if several or len(shown) == 1 else "", panel(shown, case)]
    return ": ".join(filter(None, words))
