"""Read the recipes of tables and figures of papers.

A recipe is a YAML file, ``papers/PAPER/ITEM.yaml``. The numbers that the paper prints are in ``ITEM.csv`` beside it,
one line for each case, method and metric. A recipe has these entries:

- ``title``;
- ``figure``: the kind of figure to draw, with settings;
- ``notes``: what the paper leaves open or misprints;
- ``options``: options that all runs share;
- ``cases``: the columns of a table, or the points of a sweep;
- ``methods``: by their printed names;
- ``measures``: the entry of a run's summary for each printed metric. Values are multiplied by 100 to give percent,
  unless a ``=`` stands before the entry;
- ``claims``: the paper's conclusions, as orders of methods;
- ``scales``: how much to run.

Options of a case override the shared ones, those of a method override both, and those of a scale override all. A case
may have options for single methods, as ``methods: {NAME: {...}}``.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import yaml

from ..errors import AtollError, unknown
from ..report.figures import FigureRequest, check_request
from ..utils.parsing import Json

SCALES = ("smoke", "cpu", "full")
SCALE_ENTRIES = ("options", "cases", "methods", "seeds", "stand_ins", "note")
ENTRIES = ("title", "figure", "notes", "options", "cases", "methods", "measures", "claims", "scales")
MEASURES = {"accuracy": "personal.best_by_val"}
CASE_METHODS = "methods"  # Entry of a case: options for single methods, by printed name.
DECLARED = "claim"  # The experiment that decides a paper's main claim is no recipe; see claims.py.


class Cell(NamedTuple):
    """Position of a number: case, method and metric."""

    case: str
    method: str
    metric: str


class RecipeMethod(NamedTuple):
    """A method of a recipe: the method to run, its own measures, and its own options."""

    run: str  # such as "dcpfl:no-al"
    measures: Mapping[str, str]
    options: Json


class PrintedNumber(NamedTuple):
    """A number that the paper prints, with its standard deviation; NaN where the paper prints none."""

    value: float
    std: float


@dataclass(frozen=True)
class Scale:
    """How much of a recipe to run."""

    name: str
    note: str = ""
    options: Json = field(default_factory=dict)
    cases: Sequence[str] = ()  # Empty: all cases. The same holds for methods.
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # Data sets that replace those of the paper.


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper: what to run, and the printed numbers."""

    paper: str
    item: str
    title: str
    figures: Sequence[FigureRequest]
    notes: Sequence[str]
    options: Json
    cases: Mapping[str, Json]
    methods: Mapping[str, RecipeMethod]  # by printed name
    measures: Mapping[str, str]
    claims: Sequence[str]
    scales: Mapping[str, Scale]
    printed: Mapping[Cell, PrintedNumber]

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.item}"

    def scale(self, name: str) -> Scale:
        """Return the scale called ``name``; raise an AtollError if the recipe has none of that name."""
        if name not in self.scales:
            raise unknown("scale", name, self.scales, f"of {self.name}")
        return self.scales[name]


def recipes_dir() -> Path:
    """Return the folder of recipes: inside an installed package, or at the root of a clone."""
    inside = Path(str(resources.files("atoll"))) / "papers"
    return inside if inside.is_dir() else inside.parents[2] / "papers"


def list_recipes(folder: Path | None = None) -> list[str]:
    """List all recipes, as ``paper/item``."""
    root = folder or recipes_dir()
    found = (path.relative_to(root).with_suffix("") for path in root.glob("*/*.yaml"))
    return sorted(str(name) for name in found if name.name != DECLARED)


def read_recipe(name: str, folder: Path | None = None) -> Recipe:
    """Read a recipe.

    Args:
        name: a recipe, such as ``"dcpfl/table1"``.
        folder: the folder of recipes; without it, the one that comes with the package.

    Raises:
        AtollError: if there is no such recipe, or an entry in it is unknown.
    """
    root = folder or recipes_dir()
    if name not in list_recipes(root):
        own = [recipe for recipe in list_recipes(root) if recipe.startswith(f"{name.partition('/')[0]}/")]
        if own:
            raise AtollError(f"Unknown recipe {name!r}. Recipes of this paper: {', '.join(own)}.")
        raise unknown("recipe", name, list_recipes(root))
    path = root / f"{name}.yaml"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as reason:
        raise AtollError(f"{path} is not readable YAML: {reason}") from reason
    check_entries(entries, ENTRIES, str(path))
    paper, item = name.split("/")
    return Recipe(
        paper,
        item,
        entries["title"],
        _figures(entries.get("figure", []), path),
        entries.get("notes", []),
        entries.get("options", {}),
        {case: options or {} for case, options in entries["cases"].items()},
        {shown: _method(said) for shown, said in entries["methods"].items()},
        entries.get("measures", MEASURES),
        entries.get("claims", []),
        {scale: _scale(scale, said or {}, path) for scale, said in entries["scales"].items()},
        _read_printed(path.with_suffix(".csv")),
    )


def _method(said: str | Json) -> RecipeMethod:
    """Read a method that is named alone, or named by ``run`` among other entries."""
    if isinstance(said, str):
        return RecipeMethod(said, {}, {})
    options = {name: v for name, v in said.items() if name not in ("run", "measures")}
    return RecipeMethod(said["run"], said.get("measures", {}), options)


def _figures(entries: object, path: Path) -> list[FigureRequest]:
    return [check_request(one, str(path)) for one in (entries if isinstance(entries, list) else [entries])]


def _scale(name: str, entries: Json, path: Path) -> Scale:
    if name not in SCALES:
        raise unknown("scale", name, SCALES, f"in {path}")
    check_entries(entries, SCALE_ENTRIES, f"{path}, {name}")
    return Scale(name, **entries)


def check_entries(entries: object, known: Iterable[str], where: str) -> None:
    """Raise an AtollError if ``entries`` is no mapping, or has an entry that is not among the known ones."""
    if not isinstance(entries, dict):
        raise AtollError(f"{where} must contain entries such as {', '.join(known)}.")
    for name in entries:
        if name not in known:
            raise unknown("entry", str(name), known, f"in {where}")


def _read_printed(path: Path) -> dict[Cell, PrintedNumber]:
    """Read the numbers of the paper; some items, such as images, print none."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as f:
        return {
            Cell(row["case"], row["method"], row["metric"]): PrintedNumber(_number(row["value"]), _number(row["std"]))
            for row in csv.DictReader(f)
        }


def _number(text: str) -> float:
    return float(text) if text not in ("", "-", "NA") else math.nan
