"""Define the common style of all figures, and convert figures to files and to inline SVG."""

import hashlib
import io
import re
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ..errors import AtollError

P = ParamSpec("P")
ArtistStyle = dict[str, Any]  # keyword arguments of a matplotlib artist

WIDE = 11.0  # inches; for a desktop window or a page across
NARROW = 4.2  # inches; for a telephone or one column of a paper
DPI = 200  # of a PNG
SHRINK = 0.72  # a figure in a page shrinks to this scale before it scrolls, so that its text stays readable

# Name: (on white, on a dark page). The series are the Okabe-Ito colours without yellow, which is hard to see on white.
COLOURS = {
    "ink": ("#1b1f24", "#e6e8eb"),
    "muted": ("#5a6472", "#a3adba"),
    "grid": ("#dfe3e8", "#343b45"),
    "paper": ("#ffffff", "#171b21"),
    "series-0": ("#0072b2", "#4ba3e3"),
    "series-1": ("#d55e00", "#ff8242"),
    "series-2": ("#009e73", "#27c596"),
    "series-3": ("#cc79a7", "#e79cc6"),
    "series-4": ("#e69f00", "#f2b632"),
    "series-5": ("#56b4e9", "#9bdcff"),
    "series-6": ("#4d4d4d", "#c4c8ce"),
}
SERIES = [light for name, (light, _) in COLOURS.items() if name.startswith("series")]
# Classes are often ten, and points are too small to be told apart by their marks: three more colours.
CLASSES = [*SERIES, "#6a3d9a", "#8c510a", "#a6c034"]
# Two lines of one colour differ in their mark; five and seven share no factor, so 35 lines are all different.
MARKS = ("o", "s", "^", "D", "v")

INK, MUTED, GRID, PAPER = (COLOURS[name][0] for name in ("ink", "muted", "grid", "paper"))

_VALUE = "value of a mark: "  # what the ids of marks with a value begin with, until the SVG is written

RC: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so a figure is the same on every machine
    "font.size": 9.5,
    "text.parse_math": False,  # class names may contain dollar signs
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.9,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": PAPER,
    "svg.hashsalt": "atoll",  # the same figure gives the same file
}


def colour(i: int) -> str:
    """Return the colour of the i-th series."""
    return SERIES[i % len(SERIES)]


def mark(i: int) -> str:
    """Return the marker of the i-th series."""
    return MARKS[i % len(MARKS)]


def class_look(c: int) -> ArtistStyle:
    """Return colour and marker of the c-th class; fifty classes look different, ten differ in their colours."""
    return {"color": CLASSES[c % len(CLASSES)], "marker": mark(c + c // len(CLASSES))}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a drawing function to draw in the common style without changing matplotlib's settings."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return inner


def figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def set_value(mark: Artist, text: str) -> None:
    """Give a mark a text that an SVG shows under the pointer."""
    mark.set_gid(_VALUE + text)


def save(fig: Figure, path: Path) -> Path:
    """Write a figure as PNG or SVG, by the extension; text in an SVG becomes outlines, so no font is needed."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise AtollError(f"Cannot save a figure as {path.name!r}. Give a name that ends in .png or .svg.")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if kind == "svg" else None
    with matplotlib.rc_context(RC | {"svg.fonttype": "path"}):
        fig.savefig(path, format=kind, dpi=DPI, metadata=metadata)
    if kind == "svg":
        path.write_text(_title_values(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def inline_svg(fig: Figure, name: str | None = None) -> str:
    """Return the figure as an `<svg>` element for a page.

    Its ids start with `name` (by default a digest of the picture), so several pictures share a page. Text stays text in
    the page's font, and colours are the page's variables (see `variables`), so it follows a dark page.
    """
    svg = _title_values(_strip_metadata(_render(fig)))
    svg = svg.replace("<svg ", f'<svg style="min-width: {SHRINK * 96 * fig.get_figwidth():.0f}px" ', 1)
    name = name or "f" + hashlib.sha256(svg.encode()).hexdigest()[:10]
    return re.sub(r"<[^>]*>", lambda tag: _page_tag(tag[0], name), svg)


def variables(dark: bool) -> dict[str, str]:
    """Return the CSS variables that a page must define for its figures."""
    return {f"--{name}": pair[dark] for name, pair in COLOURS.items()}


def _render(fig: Figure) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context(RC | {"svg.fonttype": "none"}), warnings.catch_warnings():
        # The browser draws the text, with whatever font has the sign.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        fig.savefig(buffer, format="svg", transparent=True)
    return buffer.getvalue()


def _strip_metadata(svg: str) -> str:
    """Keep only the drawing: remove XML prologue, comments, metadata and styles that would leak into the page."""
    svg = svg[svg.index("<svg") :]
    return re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)


def _title_values(svg: str) -> str:
    """Turn the texts of marks, which matplotlib writes as ids, into titles."""
    return re.sub(rf'<g id="{_VALUE}([^"]*)">', r'<g class="value"><title>\1</title>', svg)


def _page_tag(tag: str, name: str) -> str:
    tag = tag.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    tag = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda m: _variable(m[0]), tag)


def _variable(hexadecimal: str) -> str:
    for name, (light, _) in COLOURS.items():
        if light == hexadecimal:
            return f"var(--{name}, {light})"
    return hexadecimal
