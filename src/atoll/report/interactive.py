"""Make the figures of lines in a report interactive: their numbers as JSON, and one script that needs no network."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources

from markupsafe import Markup

from ..utils.files import to_json
from .plots.lines import Line, LineChart
from .table import Row

# The modules of the script, each after those that it imports. The dashboard serves all but the last one as they are.
MODULES = ("dom.js", "words.js", "axes.js", "lines.js", "report.js")


@cache
def script() -> Markup:
    """Return the script of a report: its modules in one, because a page that requests nothing cannot import."""
    parts = [_read(name) for name in MODULES]
    bare = [
        re.sub(r"^import [^;]*;\n|^export (?=const|function|class)", "", part, flags=re.MULTILINE) for part in parts
    ]
    return Markup("".join(["\n", *bare]))


@cache
def script_source() -> str:
    """Return the only script that the page allows, as an entry of its content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()}'"


@cache
def stylesheet() -> Markup:
    """Return the shapes of interactive charts as CSS."""
    return Markup(_read("chart.css"))


def embed(value: object) -> Markup:
    """Return a value as JSON that can stand in a script element: no text in it can end the element."""
    return Markup(to_json(value).replace("<", r"\u003c"))


def embed_chart(chart: LineChart) -> Markup:
    """Return the panels of a chart as JSON, in the units that its axes show."""
    across, up = chart.across, chart.up
    return embed(
        {
            "x": {"title": across.label, "log": across.log, "bytes": across.in_bytes, "whole": across.whole}
            | {"names": list(across.names)},
            "y": {"title": up.label, "percent": up.percent},
            "kinds": dict(chart.kinds),
            "names": chart.names,
            "panels": [
                {
                    "title": panel.title,
                    "goal": None if panel.goal is None else up.scale * panel.goal,
                    "lines": [_line(line, up.scale) for line in panel.lines if line.y.size],
                }
                for panel in chart.panels
            ],
        }
    )


def embed_rows(tables: Sequence[tuple[str, Sequence[Row]]]) -> Markup:
    """Return the rows of all tables as JSON, with the titles of their chapters."""
    return embed([{"title": title, "rows": [_row(row) for row in rows]} for title, rows in tables])


def _row(row: Row) -> dict[str, object]:
    stats = ("best_by_val", "final", "best", "worst_decile", "generic")
    named = {name: stat and stat._asdict() for name in stats for stat in [getattr(row, name)]}
    own = {name: stat and stat._asdict() for name, stat in row.own.items()}
    return asdict(row) | named | {"own": own, "criterion": row.criterion.name}


def _line(line: Line, scale: float) -> dict[str, object]:
    mean = _short(scale * line.y.mean(0))
    found: dict[str, object] = {"name": line.name, "dash": line.dash}
    if not len(line.x):
        return found | {"level": mean[-1]}
    spread = {} if len(line.y) < 2 else {"low": _short(scale * line.y.min(0)), "high": _short(scale * line.y.max(0))}
    return found | {"x": _short(line.x), "y": mean} | spread


def _short(values: Iterable[float]) -> list[float]:
    """Return values with six digits, more than a chart shows: all digits would make the page twice as large."""
    return [float(f"{value:.6g}") for value in values]


def _read(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")
