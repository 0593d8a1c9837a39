"""Tables and figures of papers as recipes: what to run, at which scale, and the printed numbers to hold it against.

A recipe is a YAML file, ``papers/PAPER/ITEM.yaml``; the numbers that the paper prints stand beside it in ``ITEM.csv``,
one line for each case, method and metric. What a recipe says, from top to bottom: a title, ``figure`` (which picture it
makes, with settings), ``notes`` on what the paper leaves open or misprints, ``options`` that all runs share, ``cases``
(the columns of a table, or the points of a sweep), ``methods`` by their printed names, ``measures`` (which entry of a
run's summary each printed metric is; shares come in percent, and an entry with a ``=`` before it comes as it is),
``claims`` (what the paper concludes, as an order of methods) and ``scales``. Later ones overrule: the options of all,
of a case, of a method, of a scale.
"""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..config import Config, from_dict
from ..errors import AtollError, unknown
from ..report.figures import Wanted, wanted
from ..report.sheets import Sheet
from ..report.significance import paired
from ..report.table import NONE, accuracy
from ..storage.run_reader import Run, value
from ..utils.stats import Stat, spread
from .planning import entry, safe

SCALES = ("smoke", "cpu", "full")
SCALE_ENTRIES = ("options", "cases", "methods", "seeds", "stand_ins", "note")
ENTRIES = ("title", "figure", "notes", "options", "cases", "methods", "measures", "claims", "scales")
MEASURES = {"accuracy": "personal.best_by_val"}


class Cell(NamedTuple):
    """Where a number stands."""

    case: str
    method: str
    metric: str


class Printed(NamedTuple):
    """A number as the paper prints it; NaN where it prints none."""

    value: float
    std: float


@dataclass(frozen=True)
class Scale:
    """How much of it to run."""

    name: str
    note: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[str] = ()  # all, if empty
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # data sets in place of those of the paper


@dataclass(frozen=True)
class Recipe:
    paper: str
    item: str
    title: str
    figures: Sequence[Wanted]
    notes: Sequence[str]
    options: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, Mapping[str, Any]]  # printed name: {"run": "dcpfl:no-al", "measures": ..., other options}
    measures: Mapping[str, str]
    claims: Sequence[str]
    scales: Mapping[str, Scale]
    printed: Mapping[Cell, Printed]

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.item}"

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise unknown(f"scale of {self.name}", name, self.scales)
        return self.scales[name]


class Planned(NamedTuple):
    """One run of a recipe."""

    case: str
    method: str
    config: Config


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def recipes_dir() -> Path:
    """The folder of recipes: inside an installed package, or at the root of a clone."""
    inside = Path(str(resources.files("atoll"))) / "papers"
    return inside if inside.is_dir() else inside.parents[2] / "papers"


def names(folder: Path | None = None) -> list[str]:
    """All recipes, as ``paper/item``."""
    root = folder or recipes_dir()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.glob("*/*.yaml"))


def read(name: str, folder: Path | None = None) -> Recipe:
    root = folder or recipes_dir()
    if name not in names(root):
        raise unknown("recipe", name, names(root))
    path = root / f"{name}.yaml"
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as reason:
        raise AtollError(f"{path} is not readable YAML: {reason}") from reason
    _check_entries(said, ENTRIES, str(path))
    paper, item = name.split("/")
    return Recipe(
        paper,
        item,
        said["title"],
        _figures(said.get("figure", []), path),
        said.get("notes", []),
        said.get("options", {}),
        {case: options or {} for case, options in said["cases"].items()},
        {shown: run if isinstance(run, dict) else {"run": run} for shown, run in said["methods"].items()},
        said.get("measures", MEASURES),
        said.get("claims", []),
        {scale: _scale(scale, entries or {}, path) for scale, entries in said["scales"].items()},
        _printed(path.with_suffix(".csv")),
    )


def _figures(said: Any, path: Path) -> list[Wanted]:
    return [wanted(one, str(path)) for one in (said if isinstance(said, list) else [said])]


def _scale(name: str, entries: Mapping[str, Any], path: Path) -> Scale:
    if name not in SCALES:
        raise unknown(f"scale in {path}", name, SCALES)
    _check_entries(entries, SCALE_ENTRIES, f"{path}, {name}")
    return Scale(name, **entries)


def _check_entries(said: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(said, dict):
        raise AtollError(f"{where} must hold entries such as {', '.join(known)}.")
    for name in said:
        if name not in known:
            raise unknown(f"entry in {where}", str(name), known)


def _printed(path: Path) -> dict[Cell, Printed]:
    """The numbers of the paper; some items, such as pictures, print none."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as f:
        return {
            Cell(row["case"], row["method"], row["metric"]): Printed(_number(row["value"]), _number(row["std"]))
            for row in csv.DictReader(f)
        }


def _number(text: str) -> float:
    return float(text) if text not in ("", "-", "NA") else math.nan


# ---------------------------------------------------------------------------------------------------------------------
# Planning


def plan(recipe: Recipe, scale: Scale, root: Path, **changes: Any) -> list[Planned]:
    """Every run, in a directory of its own that is named after what decides its numbers.

    So a run that is there is the run that is wanted, and results of different configurations never mix.
    """
    cases, methods = _chosen(recipe.cases, scale.cases, "case"), _chosen(recipe.methods, scale.methods, "method")
    return [
        _placed(Planned(case, method, _config(recipe, scale, case, method, seed, changes)), root)
        for case in cases
        for method in methods
        for seed in scale.seeds
    ]


def _chosen(known: Mapping[str, Any], wanted: Sequence[str], kind: str) -> list[str]:
    for name in wanted:
        if name not in known:
            raise unknown(kind, name, known)
    return list(wanted) or list(known)


def _config(
    recipe: Recipe, scale: Scale, case: str, method: str, seed: int, changes: Mapping[str, Any]
) -> Config:  # fmt: skip
    own = {name: v for name, v in recipe.methods[method].items() if name not in ("run", "measures")}
    layers = (
        recipe.options,
        recipe.cases[case],
        own,
        scale.options,
        {k: v for k, v in changes.items() if v is not None},
    )
    values: dict[str, Any] = {}
    for layer in layers:
        settings = {**values.get("settings", {}), **layer.get("settings", {})}
        values = {**values, **layer, "settings": settings}
    values["data"] = scale.stand_ins.get(values.get("data", ""), values.get("data", "digits"))
    return entry(recipe.methods[method]["run"], from_dict({**values, "seed": seed}, f"the recipe {recipe.name}"))


def _placed(planned: Planned, root: Path) -> Planned:
    config = planned.config
    decisive = json.dumps({**config.identity(), "rounds": config.rounds}, sort_keys=True, default=str)
    mark = sha256(decisive.encode()).hexdigest()[:8]
    case, method = (safe(text.replace("/", "-")) for text in planned[:2])  # "w/o" is no path
    folder = root / case / f"{method}-seed{config.seed}-{mark}"
    return planned._replace(config=replace(config, out=str(folder)))


# ---------------------------------------------------------------------------------------------------------------------
# Paper against measured


class Compared(NamedTuple):
    cell: Cell
    printed: Printed | None
    measured: Stat | None  # None: not run at this scale, or not finished by every seed

    @property
    def gap(self) -> float | None:
        if self.printed is None or self.measured is None or math.isnan(self.printed.value):
            return None
        return self.measured.mean - self.printed.value


def compared(recipe: Recipe, loaded: Mapping[tuple[str, str], Sequence[Run]]) -> list[Compared]:
    """Every number that is printed or measured; accuracies in percent."""
    out = []
    for (case, method), runs in loaded.items():
        for metric, dotted in dotted_of(recipe, method).items():
            cell = Cell(case, method, metric)
            out.append(Compared(cell, recipe.printed.get(cell), measured(runs, dotted)))
    return out


def dotted_of(recipe: Recipe, method: str) -> dict[str, str]:
    """Which entry of a summary each metric is for a method."""
    return {**recipe.measures, **recipe.methods[method].get("measures", {})}


def measured(runs: Sequence[Run], dotted: str) -> Stat | None:
    """Mean and deviation over seeds of an entry of the summaries."""
    values = [value(run.summary, dotted.removeprefix("=")) for run in runs]
    known = [v if dotted.startswith("=") else 100 * v for v in values if v is not None]
    return spread(known) if known and len(known) == len(values) else None


# ---------------------------------------------------------------------------------------------------------------------
# What the paper concludes


class Verdict(NamedTuple):
    """Whether one method came out above another in a case, by one of the printed metrics."""

    case: str
    better: str
    worse: str
    metric: str
    difference: float  # in points of the mean
    seeds: str  # in how many of them it is above: "2 of 3"
    p: float  # over clients and seeds; NaN for metrics that no client has by itself

    @property
    def holds(self) -> bool:
        return self.difference > 0


def verdicts(recipe: Recipe, loaded: Mapping[tuple[str, str], Sequence[Run]]) -> list[Verdict]:
    """Every neighbouring pair of every claim such as ``DC-PFL > FedGH > Local-T``, in every case that was run."""
    shares = [metric for metric, dotted in recipe.measures.items() if not dotted.startswith("=")]
    return [
        _verdict(recipe, case, pair, metric, loaded)
        for claim in recipe.claims
        for pair in pairwise(word.strip() for word in claim.split(">"))
        for case in recipe.cases
        if all((case, method) in loaded for method in pair)
        for metric in shares
    ]


def _verdict(
    recipe: Recipe,
    case: str,
    pair: tuple[str, str],
    metric: str,
    loaded: Mapping[tuple[str, str], Sequence[Run]],
) -> Verdict:
    entries = [dotted_of(recipe, method)[metric] for method in pair]
    sides = [loaded[case, method] for method in pair]
    mine, other = (
        {run.seed: value(run.summary, dotted) or 0.0 for run in side}
        for side, dotted in zip(sides, entries, strict=True)
    )
    gaps = [100 * (mine[seed] - other[seed]) for seed in mine if seed in other]
    test = paired(*sides) if set(entries) == {MEASURES["accuracy"]} else None
    mean = sum(gaps) / len(gaps) if gaps else math.nan
    won = f"{sum(g > 0 for g in gaps)} of {len(gaps)}"
    return Verdict(case, *pair, metric, mean, won, test.p if test else math.nan)


# ---------------------------------------------------------------------------------------------------------------------
# As tables


def sheets(recipe: Recipe, found: Sequence[Compared]) -> list[Sheet]:
    """One table for each case: methods down; printed, measured and gap of each metric across."""
    made = []
    for case in dict.fromkeys(c.cell.case for c in found):
        here = {(c.cell.method, c.cell.metric): c for c in found if c.cell.case == case}
        metrics = list(dict.fromkeys(metric for _, metric in here))
        columns = ["method", *(f"{metric}: {what}" for metric in metrics for what in ("paper", "measured", "gap"))]
        rows = [
            [method, *(text for metric in metrics for text in _texts(here[method, metric]))]
            for method in dict.fromkeys(method for method, _ in here)
        ]
        made.append(Sheet(case, columns, rows))
    return made


def _texts(c: Compared) -> tuple[str, str, str]:
    printed = None if c.printed is None or math.isnan(c.printed.value) else c.printed
    std = None if printed is None or math.isnan(printed.std) else printed.std
    return (
        accuracy(None if printed is None else Stat(printed.value, std)),
        accuracy(c.measured),
        NONE if c.gap is None else f"{c.gap:+.2f}",
    )


def claim_sheet(found: Sequence[Verdict]) -> Sheet:
    rows = [
        [
            f"{v.better} > {v.worse}",
            v.case,
            v.metric,
            "yes" if v.holds else "no",
            f"{v.difference:+.2f}",
            v.seeds,
            NONE if math.isnan(v.p) else f"{v.p:.2g}",
        ]
        for v in found
    ]
    columns = ["claim", "case", "by", "holds", "points", "in seeds", "p"]
    return Sheet("What the paper concludes", columns, rows)
