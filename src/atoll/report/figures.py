"""Figures by name: what a recipe or a user asks for, drawn from runs and written as files."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ..errors import AtollError, unknown
from ..networks import read_options
from . import from_cases, from_metrics, from_models
from .runs import Run
from .shown import Drawn, Shown, by_case
from .style import WIDE, save

KINDS: dict[str, Callable[..., list[Drawn]]] = {
    "curves": from_metrics.curves,
    "boxes": from_metrics.boxes,
    "bytes": from_metrics.traffic,
    "trade-off": from_metrics.trade_off,
    "holdings": from_metrics.holdings,
    "arrivals": from_metrics.arrivals,
    "sweep": from_cases.sweep,
    "tsne": from_models.tsne,
    "relations": from_models.relations,
    "moduli": from_models.moduli,
    "images": from_models.images,
    "newcomers": from_models.newcomers,
    "timeline": from_models.timeline,
}
USUAL = ("curves", "boxes", "bytes", "trade-off", "holdings")  # what any runs can be shown by
ENDINGS = (".png", ".svg")


class Wanted(NamedTuple):
    """A kind of figure with its settings."""

    kind: str
    settings: Mapping[str, Any] = {}


def wanted(said: Any, where: str) -> Wanted:
    """A kind alone, or ``kind`` among its settings; misspelt ones are refused."""
    entries = {"kind": said} if isinstance(said, str) else said
    if not isinstance(entries, Mapping) or "kind" not in entries:
        raise AtollError(f"{where}: a figure is a kind such as curves, or entries such as {{kind: tsne, rows: 50}}.")
    kind, settings = str(entries["kind"]), {str(k): v for k, v in entries.items() if k != "kind"}
    if kind not in KINDS:
        raise unknown(f"kind of figure in {where}", kind, KINDS)
    known = list(inspect.signature(KINDS[kind]).parameters)[1:]
    for name in settings:
        if name not in known:
            raise unknown(f"setting of {kind} in {where}", name, known)
    return Wanted(kind, settings)


def asked(text: str, where: str = "--figure") -> Wanted:
    """As on the command line: ``tsne`` or ``tsne:client=3&rows=50``."""
    kind, _, options = text.partition(":")
    return wanted({"kind": kind, **read_options(options)}, where)


def made(figures: Iterable[Wanted], shown: Shown) -> list[Drawn]:
    return [drawn for kind, settings in figures for drawn in KINDS[kind](shown, **settings)]


def usual(shown: Shown) -> list[Drawn]:
    return made(map(Wanted, USUAL), shown)


def draw(figure: str, runs: Iterable[Run], width: float = WIDE) -> Figure:
    """The figure of that name, with settings as on the command line; of several, the first."""
    return made([asked(figure, "plot()")], by_case(runs))[0].draw(width)


def write(drawn: Sequence[Drawn], folder: Path) -> list[Path]:
    """Each figure as PNG, and as SVG for those who print or edit it."""
    paths = []
    for one in drawn:
        figure = one.draw(WIDE)
        paths += [save(figure, folder / f"{one.name}{ending}") for ending in ENDINGS]
    return paths
