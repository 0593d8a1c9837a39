"""Figures by name: what a recipe or a user asks for, drawn from runs and written as files."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ...errors import AtollError, unknown
from ...storage.run_reader import Run
from ...utils.parsing import parse_options
from ..style import WIDE, save
from . import metrics, models, sweeps
from .base import FigureSpec, RunsByCase, by_case

KINDS: dict[str, Callable[..., list[FigureSpec]]] = {
    "curves": metrics.curves,
    "boxes": metrics.boxes,
    "bytes": metrics.traffic,
    "trade-off": metrics.trade_off,
    "holdings": metrics.holdings,
    "arrivals": metrics.arrivals,
    "sweep": sweeps.sweep,
    "tsne": models.tsne,
    "relations": models.relations,
    "moduli": models.moduli,
    "images": models.images,
    "newcomers": models.newcomers,
    "timeline": models.timeline,
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
    """Read a value of ``--figure``: ``tsne`` or ``tsne:client=3&rows=50``."""
    kind, _, options = text.partition(":")
    form = "KIND:SETTING=VALUE&SETTING=VALUE, such as tsne:rows=50"
    return wanted({"kind": kind, **parse_options(where, text, options, form)}, where)


def made(figures: Iterable[Wanted], shown: RunsByCase) -> list[FigureSpec]:
    return [drawn for kind, settings in figures for drawn in KINDS[kind](shown, **settings)]


def usual(shown: RunsByCase) -> list[FigureSpec]:
    return made(map(Wanted, USUAL), shown)


def draw(figure: str, runs: Iterable[Run], width: float = WIDE) -> Figure:
    """The figure of that name, with settings as on the command line; of several, the first."""
    return made([asked(figure, "plot()")], by_case(runs))[0].draw(width)


def write(drawn: Sequence[FigureSpec], folder: Path) -> list[Path]:
    """Each figure as PNG, and as SVG for those who print or edit it."""
    paths = []
    for one in drawn:
        figure = one.draw(WIDE)
        paths += [save(figure, folder / f"{one.name}{ending}") for ending in ENDINGS]
    return paths
