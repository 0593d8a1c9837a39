"""The page that shows the figures: docs/measured/bench.json keeps them, and a table of the page is made from it."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import peers_page, plot
from .targets import target

DOCS = Path(__file__).parents[1] / "docs"
MEASURED, PAGE = DOCS / "measured" / "bench.json", DOCS / "explanation-performance.md"
PICTURE = DOCS / "pictures" / "cost.svg"
PLACE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def write(figures: Mapping[str, float]) -> None:
    """Keep the figures with what they were measured on, and put them into the page.

    Figures that were not measured again stay, with the date of their own measurement.
    """
    kept = [conditions() | {"figures": dict(figures)}]
    for older in measured():
        left = {name: value for name, value in older["figures"].items() if name not in figures}
        kept += [older | {"figures": left}] if left else []
    MEASURED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    plot.draw(all_figures(), PICTURE)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def measured() -> list[dict[str, Any]]:
    """Return what was measured, the latest first: figures with the conditions that they were taken under."""
    found: list[dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else []
    return found


def all_figures() -> dict[str, float]:
    """Return the latest value of every figure."""
    return {name: value for part in reversed(measured()) for name, value in part["figures"].items()}


def filled(text: str) -> str:
    """The page with the tables of what was measured last."""
    return peers_page.filled(PLACE.sub(lambda _: tables(measured()), text))


def tables(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for each measurement, and the picture."""
    lines: list[str] = []
    for m in parts:
        where = f"{m['processor']}, {m['cores']} cores; Python {m['python']}, torch {m['torch']}"
        lines += [
            f"Measured on {m['date']} with Atoll {m['atoll']}: {where}.",
            "",
            "| figure | value | target |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{name}` | {number(value)} | {_told(name, value)} |" for name, value in m["figures"].items()]
        lines.append("")
    if plot.measured({name: value for m in parts for name, value in m["figures"].items()}):
        lines += [f"![Cost of a round as clients, features, classes and weights grow](pictures/{PICTURE.name})", ""]
    return "\n".join(lines[:-1]) + "\n"


def number(value: float) -> str:
    """Three digits are more than the machine's noise leaves."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _told(name: str, value: float) -> str:
    wanted = target(name)
    return "" if wanted is None else str(wanted) if wanted.met(value) else f"**missed**: {wanted}"


def conditions() -> dict[str, Any]:
    """Return what figures were measured on, and when."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "atoll": version("atoll"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
