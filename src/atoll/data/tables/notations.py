"""Recognise numbers and dates in texts."""

import re
from collections.abc import Iterable
from datetime import datetime

_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = re.compile(  # in any notation
    rf"\d{{1,4}}[./-]\d{{1,2}}[./-]\d{{1,4}}.*|(19|20)\d\d[./-](0[1-9]|1[0-2])|\d{{1,2}}[ .-]*{_MONTH}[ .,-]*\d{{2,4}}",
    re.IGNORECASE,
)
_NUMBER = re.compile(  # with a comma, marks for thousands, money or percent, or a long minus sign
    r"[$€£]?\s*[-+−]?\s*(?=[.,]?\d)(\d{1,3}([,.'’\s]\d{3})+|\d*)([.,]\d+)?\s*[$€£%]?"
)


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
    if _NUMBER.fullmatch(text):
        return "Write numbers with a point, such as 1.5, and without marks for thousands, money or percent. "
    return "Write dates as 2024-03-31. " if _DATE.fullmatch(text) else ""
