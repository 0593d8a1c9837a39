"""Measure what the page of results reports: ``python docs/measure.py [NAME ...]`` runs experiments.yaml to the end.

What was interrupted continues. The numbers go to docs/measured/NAME.json, from which ``docs/build.py`` makes the page.
Data sets other than digits are looked for as ``atoll`` does (ATOLL_DATA).
"""

import json
import shlex
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from atoll.report import table
from atoll.storage import run_reader

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "measured"
RUNS = FOLDER.parent / "build" / "measured"


def experiments() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "experiments.yaml").read_text(encoding="utf-8"))
    return loaded


def measure(name: str, command: str) -> None:
    out = RUNS / name
    words = [sys.executable, "-m", *shlex.split(command), "--out", str(out)]
    subprocess.run([*words, "--resume"] if out.exists() else words, check=True)
    loaded = [run_reader.load(path) for path in run_reader.find([out])]
    each: dict[str, dict[int, float]] = defaultdict(dict)  # what seeds share, clients above all, cancels in differences
    for run in loaded:
        each[run.label][run.seed] = 100 * run.summary["personal"]["best_by_val"]
    rows = [asdict(row) | {"by_seed": each[row.name]} for row in table.rows(loaded)]
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"command": command, "rows": rows}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    known = experiments()
    for name in sys.argv[1:] or known:
        measure(name, known[name]["command"])
