"""Convert values of settings, as text or as Python objects, to their types."""

import types
from contextlib import suppress
from math import isfinite
from typing import Any, get_args

from ..errors import AtollError


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert ``value``, perhaps a string, to the type ``kind``.

    Raises:
        AtollError: if the value does not fit; ``where`` names the setting in the message.
    """
    if isinstance(kind, types.UnionType):
        if str(value).lower() in ("none", "null"):
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    try:
        if kind is bool:
            return _boolean(value)
        if kind in (int, float):
            return _number(value, kind)
    except (ValueError, TypeError, OverflowError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise AtollError(f"Setting {where} must be {wanted}, not {value!r}.") from None
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # YAML reads 8 as a number even where text is meant.
    if not isinstance(value, kind):
        raise AtollError(f"Setting {where} must be {'text' if kind is str else kind.__name__}, not {value!r}.")
    return value


def _boolean(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def _number(value: Any, kind: type[int] | type[float]) -> int | float:
    if isinstance(value, bool):
        raise ValueError
    if kind is int:
        with suppress(ValueError):
            return int(str(value))  # Conversion through float would lose digits of large numbers.
    number = kind(float(value))
    if not isfinite(number) or number != float(value):
        raise ValueError
    return number
