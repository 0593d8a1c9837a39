"""The table of the performance page that shows FedAvg beside other frameworks; docs/measured/peers.json keeps it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "docs" / "measured" / "peers.json"
PLACE = re.compile(r"(?<=<!-- peers -->\n).*?(?=<!-- end of peers -->)", re.DOTALL)

Rows = Mapping[str, Mapping[str, Any]]  # what was measured on a work, by contender


def keep(found: Mapping[str, Rows]) -> None:
    """Keep what ``python -m benchmarks.peers`` measured."""
    MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def filled(text: str) -> str:
    """Return the page with the table of what was measured last; unchanged if nothing was."""
    if not MEASURED.exists():
        return text
    return PLACE.sub(lambda _: table(json.loads(MEASURED.read_text(encoding="utf-8"))), text)


def table(found: Mapping[str, Rows]) -> str:
    """Return processor seconds of each contender on each work, and their ratio to those of Atoll."""
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    lines = [
        f"| contender | version | {' | '.join(found)} | accuracy |",
        f"| --- | --- |{' --- |' * (len(found) + 1)}",
    ]
    for name in names:
        measured = [rows.get(name, {}) for rows in found.values()]
        version = next((str(row["version"]) for row in measured if "version" in row), "")
        reached = ", ".join(f"{row['accuracy']:.3f}" if "accuracy" in row else "–" for row in measured)
        lines.append(f"| {name} | {version} | {' | '.join(map(_cell, measured))} | {reached} |")
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any]) -> str:
    """Return seconds and the ratio with its range, or the reason why there are none."""
    if "cpu" not in row:
        return "failed" if row else "–"
    seconds = f"{row['cpu']:.3g} s"
    if not row.get("ratio"):
        return seconds
    middle, low, high = row["ratio"]
    return f"{seconds}, {middle:.2f} ({low:.2f} to {high:.2f})"
