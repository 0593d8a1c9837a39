"""Write the first sentence of a comparison: the best method, and its lead over the next one and over training alone."""

from collections.abc import Sequence

from ..core.criterion import Criterion
from ..utils.stats import Stat
from .groups import Group
from .owners import ALONE, format_p
from .table import Row, format_score


def headline(found: Sequence[Group], rows: Sequence[Row], majority: Row | None = None) -> str:
    """Name the best method, and its lead over the runner-up and over ``local``, with what qualifies each lead.

    Args:
        found: the methods, the best first.
        rows: their rows of the table.
        majority: the row of the most frequent class, if there is one; a best method that is no better is said to be so.
    """
    ranked = [(group, row) for group, row in zip(found, rows, strict=True) if row.best_by_val]
    if not ranked or not (first := ranked[0][1].best_by_val):
        return f"No run has an {rows[0].criterion.title} chosen by validation yet."
    form, name = ranked[0][1].criterion, ranked[0][1].name
    shown = format_score(first, form)
    reached = (
        f"reaches {shown} % personal {form.title}" if form.percent else f"reaches a personal {form.title} of {shown}"
    )
    alone = [row for group, row in ranked[2:] if group.runs[0].label == ALONE][:1]
    behind = [row for _, row in ranked[1:2]] + (alone if found[0].runs[0].label != ALONE else [])
    leads = " and ".join(_lead(first, row, form) for row in behind)
    return (f"{name} {reached}, {leads}." if leads else f"{name} {reached}.") + _no_better(first, majority)


def _no_better(first: Stat, majority: Row | None) -> str:
    """Return a sentence if the best method does not exceed the most frequent class; otherwise nothing."""
    if majority is None or majority.best_by_val is None:
        return ""
    if _signed_gap(first, majority.best_by_val, majority.criterion) > 0:
        return ""
    share = format_score(Stat(majority.best_by_val.mean, None), majority.criterion)
    return f" Without a model, each client's most frequent class reaches {share} %: no method exceeds it."


def _lead(first: Stat, row: Row, form: Criterion) -> str:
    """Return the lead over the method of a row; in brackets one seed, a large spread over seeds, and the p-value."""
    second = row.best_by_val
    assert second is not None
    gap = _gap(first, second, form)
    lead = f"{gap:.2f} points ahead of {row.name}" if form.percent else f"{gap:.4g} {form.better} than {row.name}"
    if not gap:
        return f"level with {row.name}"
    if first.std is None or second.std is None:
        return f"{lead} (on a single seed)"
    doubts = [
        *(["less than the spread over seeds"] if gap < max(first.std, second.std) else []),
        *([f"p {format_p(row.p)}"] if row.p is not None else []),
    ]
    return f"{lead} ({', '.join(doubts)})" if doubts else lead


def _gap(first: Stat, second: Stat, form: Criterion) -> float:
    return abs(_signed_gap(first, second, form))


def _signed_gap(first: Stat, second: Stat, form: Criterion) -> float:
    return float(form.digits(first.mean)) - float(form.digits(second.mean))  # of the numbers in the table
