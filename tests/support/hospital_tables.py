"""Raw tables of three hospitals: numbers, gaps, a date and categories, of which no hospital has all."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HOSPITALS = ("north", "south", "west")
COLOURS = {"north": ("red", "blue"), "south": ("blue", "green"), "west": ("red", "green", "grey")}
DECLARED: dict[str, Any] = {
    "age": {"min": 0, "max": 120},
    "dose": {"min": 0, "max": 12},
    "colour": ["red", "blue", "green", "grey"],
    "seen": {"min": date(2010, 1, 1), "max": date(2024, 12, 31)},
}
HEAD = "age,dose,colour,seen,outcome"


def lines_of(hospital: str, rows: int = 60) -> list[str]:
    """Return the lines of a hospital's table. Ages of the north are lower; doses and colours have gaps."""
    rng = np.random.default_rng(HOSPITALS.index(hospital))
    lines = []
    for _ in range(rows):
        age = rng.integers(20, 60) + (0 if hospital == "north" else 30)
        dose = rng.choice(["?", "", "NA"]) if rng.random() < 0.2 else f"{rng.normal(5, 2):.3f}"
        colour = "" if rng.random() < 0.1 else rng.choice(COLOURS[hospital])
        seen = f"20{rng.integers(10, 25)}-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        ill = age + 10 * (colour == "red") + rng.normal(0, 5) > 55
        lines.append(f"{age},{dose},{colour},{seen},{'ill' if ill else 'well'}")
    return lines


def write_folder(folder: Path, **more: list[str]) -> Path:
    """Write a CSV for each hospital; ``more`` adds lines to some of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for hospital in HOSPITALS:
        lines = [HEAD, *lines_of(hospital), *more.get(hospital, [])]
        (folder / f"{hospital}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_schema(path: Path, **columns: Any) -> Path:
    """Write a schema with bounds and categories of all columns; None in ``columns`` leaves one out."""
    declared = {name: value for name, value in (DECLARED | columns).items() if value is not None}
    path.write_text(yaml.safe_dump({"classes": ["ill", "well"], "missing": ["?"], "columns": declared}))
    return path


def write_table(path: Path) -> Path:
    """Write the rows of all hospitals to one CSV, with a column of owners."""
    lines = [f"{HEAD},hospital"]
    lines += [f"{line},{hospital}" for hospital in HOSPITALS for line in lines_of(hospital)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_unlike(folder: Path) -> Path:
    """North has all columns, south no doses, and the west the same dose in every row and no colour."""
    write_folder(folder)
    south = [line.split(",") for line in (folder / "south.csv").read_text().splitlines()]
    (folder / "south.csv").write_text("".join(f"{r[4]},{r[3]},{r[2]},{r[0]}\n" for r in south))
    west = [line.split(",") for line in (folder / "west.csv").read_text().splitlines()]
    rows = [f"{r[0]},{'dose' if at == 0 else 4},{r[3]},{r[4]}\n" for at, r in enumerate(west)]
    (folder / "west.csv").write_text("".join(rows))
    return folder
