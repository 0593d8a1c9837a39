"""Build the chapters of a report: tables, figures and sentences on runs whose accuracies may be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..storage.run_reader import Run
from . import pictures, table
from .figures import metrics
from .figures.base import title
from .groups import Group, groups
from .wording import count, count_range


@dataclass(frozen=True)
class Chapter:
    """Runs whose accuracies may be compared, with their tables and figures."""

    title: str
    about: str
    headline: str
    cards: list[tuple[str, str, str]]  # quantity, value, method
    rows: list[table.Row]
    leaders: dict[str, set[str]]  # field of a column: names of rows
    extra: list[tuple[str, list[str]]]  # further metrics: name, one cell for each column of `extra_columns`
    extra_columns: list[str]
    curves: pictures.Picture
    boxes: pictures.Picture
    traffic: pictures.Picture
    trade_off: pictures.Picture


def make_chapter(runs: Sequence[Run], prefix: str) -> Chapter:
    """Build the chapter of comparable runs; ``prefix`` keeps ids in its figures unique on the page."""
    found = groups(runs)
    rows = [table.row(group) for group in found]
    names, extra = _extra(found)
    shown = {("", group.name): group.runs for group in found}
    return Chapter(
        title=title(runs[0].summary),
        about=_about(found),
        headline=_headline(rows),
        cards=_cards(rows),
        rows=rows,
        leaders={column.field: table.leaders(rows, column) for column in table.columns(rows)},
        extra=extra,
        extra_columns=names,
        curves=pictures.draw_spec(metrics.curves(shown), prefix),
        boxes=pictures.draw_spec(metrics.boxes(shown), prefix),
        traffic=pictures.draw_spec(metrics.traffic(shown), prefix),
        trade_off=pictures.draw_spec(metrics.trade_off(shown), prefix),
    )


def _about(found: Sequence[Group]) -> str:
    """Describe methods, seeds, data, clients, rounds and models in one sentence."""
    runs = [run for group in found for run in group.runs]
    summary = runs[0].summary
    rounds = sorted({run.planned for run in runs})
    models = list(dict.fromkeys(str(model) for run in runs for model in run.summary["models"]))
    seeds = count_range(sorted({len(group.runs) for group in found}), "seed") + (" each" if len(found) > 1 else "")
    noun = "method" if len({run.label for run in runs}) == len(found) else "configuration"
    return (
        f"{count(len(found), noun)}, {seeds}, on {summary['data']}: "
        f"{count(int(summary['clients']), 'client')} (partition {summary['partition']}, split {summary['split']}), "
        f"{count_range(rounds, 'round')}, {'model' if len(models) == 1 else 'models'} {', '.join(models)}."
    )


def _headline(rows: Sequence[table.Row]) -> str:
    """Name the best method, its lead, and whether the lead exceeds the spread over seeds."""
    ranked = [row for row in rows if row.best_by_val]
    if not ranked or not (first := ranked[0].best_by_val):
        return "No run has an accuracy chosen by validation yet."
    reached = f"{ranked[0].name} reaches {table.accuracy(first)} % personal accuracy"
    if len(ranked) == 1 or not (second := ranked[1].best_by_val):
        return f"{reached}."
    gap = round(first.mean, 2) - round(second.mean, 2)  # the difference of the numbers in the table
    spread = max(first.std or 0.0, second.std or 0.0)
    doubt = ", less than the spread over seeds" if gap < spread else ""
    if first.std is None or second.std is None:
        doubt = ", on a single seed"
    return f"{reached}, {gap:.2f} points ahead of {ranked[1].name}{doubt}."


def _cards(rows: Sequence[table.Row]) -> list[tuple[str, str, str]]:
    """Return the best value of each main quantity, and the method that reached it."""
    lead = rows[0]
    cards = [("Personal accuracy", f"{table.accuracy(lead.best_by_val)} %", lead.name)]
    for quantity, field in (("Worst decile of clients", "worst_decile"), ("Generic model", "generic")):
        known = [(stat, row.name) for row in rows if (stat := getattr(row, field))]
        if known:
            stat, name = max(known, key=lambda pair: pair[0].mean)
            cards.append((quantity, f"{table.accuracy(stat)} %", name))
    up, down = table.quantity(lead.mb_up), table.quantity(lead.mb_down)
    return [
        *cards,
        ("MB per client and round", f"↑\N{NO-BREAK SPACE}{up}\N{EM SPACE}↓\N{NO-BREAK SPACE}{down}", lead.name),
    ]


def _extra(found: Sequence[Group]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the names of all metrics, and each group's values in percent at the round of best validation."""
    where = "personal.metrics.best_by_val"
    kept = [run.summary["personal"].get("metrics", {}).get("best_by_val") or {} for g in found for run in g.runs]
    names = list(dict.fromkeys(name for metrics in kept for name in metrics))
    cells = [(g.name, [table.accuracy(table.percent(g, f"{where}.{name}")) for name in names]) for g in found]
    return [name.replace("_", " ") for name in names], cells
