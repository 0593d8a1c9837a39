"""Make figures of runs by name, as recipes and users request them, and write them as files."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ...errors import AtollError, unknown
from ...storage.run_reader import Run
from ...utils.parsing import parse_options
from ..plots.axes import entitle_figure
from ..style import WIDE, save
from . import losses, metrics, models, rankings, sweeps
from .base import FigureSpec, RunsByCase, by_case, cases
from .gains import gains

KINDS: dict[str, Callable[..., list[FigureSpec]]] = {
    "curves": metrics.curves,
    "losses": losses.losses,
    "gains": gains,
    "boxes": metrics.boxes,
    "bytes": metrics.traffic,
    "trade-off": metrics.trade_off,
    "holdings": metrics.holdings,
    "arrivals": metrics.arrivals,
    "ranks": rankings.ranks,
    "sweep": sweeps.sweep,
    "tsne": models.tsne,
    "relations": models.relations,
    "moduli": models.moduli,
    "images": models.images,
    "new-clients": models.new_clients,
    "timeline": models.timeline,
    "reliability": models.reliability,
}
DEFAULT_KINDS = ("curves", "boxes", "bytes", "trade-off", "holdings")  # suit all runs
ENDINGS = (".png", ".svg")


class FigureRequest(NamedTuple):
    """A kind of figure with its settings."""

    kind: str
    settings: Mapping[str, Any] = {}


def check_request(request: object, where: str) -> FigureRequest:
    """Check a kind of figure, or a mapping with ``kind`` and settings.

    Raises:
        AtollError: the kind or a setting is unknown. ``where`` names the place of the request.
    """
    entries = {"kind": request} if isinstance(request, str) else request
    if not isinstance(entries, Mapping) or "kind" not in entries:
        raise AtollError(f"{where}: a figure is a kind such as curves, or entries such as {{kind: tsne, rows: 50}}.")
    kind, settings = str(entries["kind"]), {str(k): v for k, v in entries.items() if k != "kind"}
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS, f"in {where}")
    known = list(inspect.signature(KINDS[kind]).parameters)[1:]
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known, f"of {kind} in {where}")
    return FigureRequest(kind, settings)


def parse_request(text: str, where: str = "--figure") -> FigureRequest:
    """Read a value of ``--figure``: ``tsne`` or ``tsne:client=3&rows=50``."""
    kind, _, options = text.partition(":")
    form = "KIND:SETTING=VALUE&SETTING=VALUE, such as tsne:rows=50"
    return check_request({"kind": kind, **parse_options(where, text, options, form)}, where)


def make_figures(figures: Iterable[FigureRequest], shown: RunsByCase) -> list[FigureSpec]:
    """Make the requested figures of runs."""
    return [drawn for kind, settings in figures for drawn in KINDS[kind](shown, **settings)]


def default_figures(shown: RunsByCase) -> list[FigureSpec]:
    """Return the figures that suit all runs."""
    return make_figures(map(FigureRequest, DEFAULT_KINDS), shown)


def draw(figure: str, runs: Iterable[Run], width: float = WIDE) -> Figure:
    """Draw the figure of a name with a title, with settings as on the command line; of several, the first one."""
    shown = by_case(runs)
    one = make_figures([parse_request(figure, "plot()")], shown)[0]
    drawn = one.draw(width)
    subject = re.split("[;:]", one.caption)[0].rstrip(".")  # what follows explains marks
    entitle_figure(drawn, f"{subject}: {cases(shown)[0]}" if len(cases(shown)) == 1 else subject)
    return drawn


def write(drawn: Sequence[FigureSpec], folder: Path) -> list[Path]:
    """Write each figure as PNG, and as SVG for printing and editing; return the paths."""
    paths = []
    for one in drawn:
        figure = one.draw(WIDE)
        paths += [save(figure, folder / f"{one.name}{ending}") for ending in ENDINGS]
    return paths
