"""Decide which scores leave a site, and how exactly: many exact scores of chosen models would reveal test rows."""

from math import floor, isfinite, log10

from ...clients.evaluation import Score

LEAST_ROWS = 20  # rows below which no score of them leaves under the rule "rounded"
STEP = 0.01
DIGITS = 2  # significant digits of scores that are not shares

Released = dict[str, float | None]  # null, in JSON, for undefined and withheld values


def release_score(score: Score | None, rule: str, val_rows: int) -> Released | None:
    """Return the form of a score that may leave, or None if no score was requested.

    Args:
        score: the exact score, with the number of test rows as ``n``.
        rule: ``exact``, ``rounded`` or ``off``.
        val_rows: number of validation rows, behind the entry ``val``.
    """
    if score is None:
        return None
    rows = {name: val_rows if name == "val" else int(score["n"]) for name in score}
    return {name: _entry(name, value, rule, rows[name]) for name, value in score.items()}


def _entry(name: str, value: float, rule: str, rows: int) -> float | None:
    if name == "n":
        return value  # known from the site's description
    if not isfinite(value) or rule == "off" or (rule == "rounded" and rows < LEAST_ROWS):
        return None
    return value if rule == "exact" else _rounded(value, rows)


def _rounded(value: float, rows: int) -> float:
    """Round a share to 1 %, or to one of few rows; another number to two digits."""
    if 0 <= value <= 1:
        step = max(STEP, 1 / rows)
        return min(1.0, round(round(value / step) * step, 6))
    return round(value, DIGITS - 1 - floor(log10(abs(value))))
