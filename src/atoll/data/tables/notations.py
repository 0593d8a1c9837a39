"""Recognise numbers and dates in texts."""

import re
from collections.abc import Iterable
from datetime import datetime

_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*")  # in any notation


def is_number(text: str) -> bool:
    """Return True for numbers as Python writes them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_date(text: str) -> bool:
    """Return True for dates and times such as 2024-03-31."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return not text.isdecimal()


def find_other_notation(texts: Iterable[str]) -> str | None:
    """Return the first number or date in another notation, if all texts are numbers or dates in some notation."""
    others = [text for text in texts if not (is_number(text) or is_date(text))]
    return others[0] if others and all(remedy(text) for text in others) else None


def remedy(text: str) -> str:
    """Return what to do about a text that is a number or a date in another notation; nothing for other texts."""
    if is_number(text.replace(",", ".")):
        return "Write numbers with a point, such as 1.5, and without marks for thousands. "
    return "Write dates as 2024-03-31. " if _DATE.fullmatch(text) else ""
