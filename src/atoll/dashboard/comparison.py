"""Compare several runs: group those that differ only in their seeds, with their spread."""

from collections.abc import Mapping, Sequence

from ..core.criterion import ACCURACY
from ..errors import AtollError
from ..report.groups import SETTING, Group, groups, settings
from ..report.page_cells import page_cell, page_family
from ..report.table import AVERAGED, METRIC, P_VALUE, WITHOUT_MODEL, Column, Row, columns, leaders, rows
from ..storage.run_reader import Run, value
from ..storage.tolerant_reader import PartialRun
from .detail import SCORES, Curves, curves
from .listing import criterion

MOST = 60  # runs


def compare(chosen: Mapping[str, PartialRun]) -> dict[str, object]:
    """Return curves and a table of the runs with these ids."""
    if len(chosen) > MOST:
        raise AtollError(f"{len(chosen)} runs are too many for one chart. Choose at most {MOST}.")
    runs = [seen.run for seen in chosen.values()]
    ids = {id(seen.run): identity for identity, seen in chosen.items()}
    found = groups(runs)
    everything = rows(runs)
    table = [line for line in everything if line.is_method]
    shown = [column for column in columns(table) if not column.field.startswith(METRIC)]
    best = {column.field: leaders(table, column) for column in shown}
    return {
        "criterion": criterion(runs[0]) if runs else None,
        "warnings": _warnings(runs),
        "notes": _notes(everything, shown),
        "baseline": [
            {"name": line.name, "seeds": len(line.seeds), "cells": [page_cell(line, column) for column in shown]}
            for line in everything
            if not line.is_method
        ],
        "columns": [{"title": column.title, "family": page_family(column.family)} for column in shown],
        "groups": [
            {
                "name": group.name,
                "seeds": list(group.seeds),
                "runs": [ids[id(run)] for run in group.runs],
                "remark": line.remark,
                "averaged": line.averaged,
                "cells": [page_cell(line, column) for column in shown],
                "leads": [group.name in best[column.field] for column in shown],
                "curves": _curves(group),
                "bytes": _bytes(group),
            }
            for group, line in zip(found, table, strict=True)
        ],
    }


def _notes(table: Sequence[Row], shown: Sequence[Column]) -> list[str]:
    """Return what marks, columns and rows of the table mean, as far as it has them."""
    return [
        *([f"{AVERAGED}."] if any(line.averaged for line in table) else []),
        *([f"{P_VALUE}."] if any(column.field == "p" for column in shown) else []),
        *([f"{WITHOUT_MODEL}."] if not table[-1].is_method else []),
    ]


def _warnings(runs: Sequence[Run]) -> list[str]:
    if len(settings(runs)) < 2:
        return []
    differ = [name for name in ("task", *SETTING) if len({str(run.summary.get(name)) for run in runs}) > 1]
    scores = "accuracies" if all(run.criterion == ACCURACY for run in runs) else "scores"
    return [f"These runs differ in {' and '.join(differ)}: their {scores} cannot be compared."]


def _curves(group: Group) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return mean, lowest and highest seed by measure and kind of model, for rounds that every seed has reached."""
    each = [curves(run) for run in group.runs]
    made: dict[str, dict[str, dict[str, list[float]]]] = {}
    for measure in dict.fromkeys(name for one in each for name in one["measures"]):
        for kind in SCORES:
            seeds = [_by_round(one, measure, kind) for one in each]
            if rounds := sorted(set.intersection(*map(set, seeds))):
                made.setdefault(measure, {})[kind] = _spread(seeds, rounds)
    return made


def _by_round(one: Curves, measure: str, kind: str) -> dict[int, float]:
    values = one["measures"].get(measure, {}).get(kind, [])
    return {t: v for t, v in zip(one["rounds"], values, strict=False) if v is not None}


def _spread(seeds: Sequence[Mapping[int, float]], rounds: Sequence[int]) -> dict[str, list[float]]:
    at = [[seed[t] for seed in seeds] for t in rounds]
    return {
        "rounds": list(rounds),
        "mean": [sum(values) / len(values) for values in at],
        "low": [min(values) for values in at],
        "high": [max(values) for values in at],
    }


def _bytes(group: Group) -> dict[int, float]:
    """Return bytes up and down until each round, as means over seeds."""
    totals = [
        {int(m["round"]): (value(m, "bytes.up") or 0.0) + (value(m, "bytes.down") or 0.0) for m in run.metrics}
        for run in group.runs
    ]
    shared = sorted(set.intersection(*map(set, totals)))
    return {t: sum(one[t] for one in totals) / len(totals) for t in shared}
