"""Plan the runs of a recipe: one configuration for each case, method and seed, each with a directory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..config import Config, from_dict
from ..errors import unknown
from ..utils.parsing import Json
from .papers import CASE_METHODS, Recipe, Scale
from .planning import method_config, to_file_name

DATA_SETS = ("data", "public_data")  # options that a stand-in may replace


class PlannedRun(NamedTuple):
    """One run of a recipe."""

    case: str
    method: str
    config: Config


def plan_runs(recipe: Recipe, scale: Scale, root: Path, **changes: object) -> list[PlannedRun]:
    """Plan every run of a recipe at a scale.

    The directory of a run contains a digest of all that decides its numbers. So results of different configurations
    never mix, and a run that is found there need not be repeated.

    Args:
        recipe: the recipe.
        scale: how much of it to run.
        root: directory of all runs.
        changes: options that override those of the recipe; None leaves an option as it is.
    """
    cases, methods = _select(recipe.cases, scale.cases, "case"), _select(recipe.methods, scale.methods, "method")
    return [
        _with_directory(PlannedRun(case, method, _run_config(recipe, scale, case, method, seed, changes)), root)
        for case in cases
        for method in methods
        for seed in scale.seeds
    ]


def _select(known: Mapping[str, object], wanted: Sequence[str], kind: str) -> list[str]:
    for name in wanted:
        if name not in known:
            raise unknown(kind, name, known)
    return list(wanted) or list(known)


def _run_config(
    recipe: Recipe, scale: Scale, case: str, method: str, seed: int, changes: Json
) -> Config:  # fmt: skip
    layers = (
        recipe.options,
        {name: value for name, value in recipe.cases[case].items() if name != CASE_METHODS},
        recipe.methods[method].options,
        recipe.cases[case].get(CASE_METHODS, {}).get(method, {}),
        scale.options,
        {k: v for k, v in changes.items() if v is not None},
    )
    values: Json = {}
    for layer in layers:
        settings = {**values.get("settings", {}), **layer.get("settings", {})}
        values = {**values, **layer, "settings": settings}
    for name in DATA_SETS:
        if name in values:
            values[name] = scale.stand_ins.get(values[name], values[name])
    return method_config(recipe.methods[method].run, from_dict({**values, "seed": seed}, f"the recipe {recipe.name}"))


def _with_directory(planned: PlannedRun, root: Path) -> PlannedRun:
    config = planned.config
    decisive = json.dumps({**config.identity(), "rounds": config.rounds}, sort_keys=True, default=str)
    digest = sha256(decisive.encode()).hexdigest()[:8]
    # A slash, as in "w/o", would make a folder.
    case, method = (to_file_name(text.replace("/", "-")) for text in (planned.case, planned.method))
    folder = root / case / f"{method}-seed{config.seed}-{digest}"
    return planned._replace(config=replace(config, out=str(folder)))
