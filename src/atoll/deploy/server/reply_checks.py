"""Check what a site sends beside an upload. Values that no honest site sends make the site absent from the round."""

import re
from math import nan

from ...clients.evaluation import Score
from ...core.problems import Problem

LARGEST = 1e12  # absolute value of a score that is no share
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BadReply(Exception):
    """Raised for a value that no honest site sends."""


def read_digest(value: object) -> str:
    """Return the digest of a state that stays at a site: 64 hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise BadReply("the digest of a state is none")
    return value


def read_score(values: object, rows: int, problem: Problem, brief: bool = False) -> Score:
    """Return a score that a site sent: all entries of a score and no others, NaN where a number is missing.

    Args:
        values: the score as it arrived; anything but a table counts as a score without numbers.
        rows: number of test rows in the site's description.
        problem: what the labels are, which decides the entries and their bounds.
        brief: whether the score is one before training, which has the criterion alone.

    Raises:
        BadReply: if a number is impossible.
    """
    sent = values if isinstance(values, dict) else {}
    criterion = problem.criterion
    names = ("n", criterion.name, "val", *(() if brief else problem.details))
    shares = {*problem.shares, *((criterion.name, "val") if criterion.percent else ())}
    return {name: float(rows) if name == "n" else _number(name, sent.get(name), name in shares) for name in names}


def _number(name: str, value: object, is_share: bool) -> float:
    if value is None:
        return nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:  # NaN is none either
        raise BadReply(f"the score {name} is no number")
    if is_share and not 0 <= value <= 1:
        raise BadReply(f"the score {name} is {value}")
    return float(value)
