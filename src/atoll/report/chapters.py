"""Build the chapters of a report: tables, figures and sentences on runs whose scores may be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.criterion import Criterion
from ..storage.run_reader import Run
from . import pictures, table
from .figures import losses, metrics
from .figures.base import title
from .figures.gains import gains
from .groups import Group, groups
from .headline import headline
from .owners import compare_with_alone, describe_gains
from .page_cells import BYTES
from .wording import count, count_range, size


@dataclass(frozen=True)
class Chapter:
    """Runs whose scores may be compared, with their tables and figures."""

    title: str
    score: Criterion
    columns: Sequence[table.Column]
    about: str
    owners: list[str]  # what owners gain over training alone, a sentence for each method
    headline: str
    cards: list[tuple[str, str, str]]  # quantity, value, method
    rows: list[table.Row]
    leaders: dict[str, set[str]]  # field of a column: names of rows
    extra: list[tuple[str, list[str]]]  # further metrics: name, one cell for each column of `extra_columns`
    extra_columns: list[str]
    extra_unit: str  # of all further metrics; empty if units differ
    gains: pictures.Picture | None  # if some method can be compared with training alone
    curves: pictures.Picture
    losses: pictures.Picture | None  # None for runs of versions that did not measure them
    boxes: pictures.Picture
    traffic: pictures.Picture
    trade_off: pictures.Picture


def make_chapter(runs: Sequence[Run], prefix: str) -> Chapter:
    """Build the chapter of comparable runs; ``prefix`` keeps ids in its figures unique on the page."""
    found = groups(runs)
    rows = table.method_rows(found)
    majority = table.majority_row(runs)
    names, extra = _extra(found)
    shares = {runs[0].problem.format_of(name).percent for name in names}
    shown = {("", group.name): group.runs for group in found}
    compared = compare_with_alone(found)
    return Chapter(
        title=title(runs[0].summary),
        score=runs[0].criterion,
        columns=table.columns(rows),
        about=_about(found),
        owners=[describe_gains(one, runs[0].criterion.percent) for one in compared],
        headline=headline(found, rows, next(iter(majority), None)),
        cards=_cards(rows),
        rows=[*rows, *majority],
        leaders={column.field: table.leaders(rows, column) for column in table.columns(rows)},
        extra=extra,
        extra_columns=[_extra_title(runs[0], name, shares) for name in names],
        extra_unit=" (%)" if shares == {True} else "",
        gains=pictures.draw_spec(gains(shown), prefix) if compared else None,
        curves=pictures.draw_spec(metrics.curves(shown), prefix),
        losses=pictures.draw_spec(losses.losses(shown), prefix) if losses.has_losses(runs) else None,
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
    if (splits := table.count_splits(runs)) > 1:
        seeds += f" ({splits} splits of the samples)"
    noun = "method" if len({run.label for run in runs}) == len(found) else "configuration"
    return (
        f"{count(len(found), noun)}, {seeds}, on {summary['data']}: "
        f"{count(int(summary['clients']), 'client')} (partition {summary['partition']}, split {summary['split']}), "
        f"{count_range(rounds, 'round')}, {'model' if len(models) == 1 else 'models'} {', '.join(models)}."
    )


def _cards(rows: Sequence[table.Row]) -> list[tuple[str, str, str]]:
    """Return the best value of each main quantity, and the method that reached it."""
    lead, form = rows[0], rows[0].criterion
    unit = " %" if form.percent else ""
    cards = [(f"Personal {form.title}", f"{table.format_score(lead.best_by_val, form)}{unit}", lead.name)]
    shown = {column.field: column for column in table.COLUMNS}
    for quantity, field in (("Worst 10 % of clients", "worst_decile"), ("Generic model", "generic")):
        known = [(row, stat) for row in rows if (stat := getattr(row, field))]
        if known:
            best, _ = form.best(known, lambda pair: pair[1].mean)
            cards.append((quantity, f"{table.cell(best, shown[field])}{unit}", best.name))
    up, down = (table.NONE if mb is None else size(1e6 * mb) for mb in (lead.mb_up, lead.mb_down))
    sizes = [f"{arrow} {mb}".replace(" ", "\N{NO-BREAK SPACE}") for arrow, mb in (("↑", up), ("↓", down))]
    return [*cards, (BYTES, " ".join(sizes), lead.name)]


def _extra(found: Sequence[Group]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the names of all metrics, and each group's values at the round of best validation."""
    where = "personal.metrics.best_by_val"
    kept = [run.summary["personal"].get("metrics", {}).get("best_by_val") or {} for g in found for run in g.runs]
    names = list(dict.fromkeys(name for metrics in kept for name in metrics))
    forms = {name: found[0].runs[0].problem.format_of(name) for name in names}

    def text(group: Group, name: str) -> str:
        return table.format_score(table.score(group, f"{where}.{name}", forms[name]), forms[name])

    cells = [(group.name, [text(group, name) for name in names]) for group in found]
    return names, cells


def _extra_title(run: Run, name: str, shares: set[bool]) -> str:
    """Return the heading of a further metric, with its unit where units differ."""
    unit = ", %" if len(shares) > 1 and run.problem.format_of(name).percent else ""
    return name.replace("_", " ") + unit
