"""Hyper-parameters: their declaration and checks of their values."""

from collections.abc import Iterable
from dataclasses import field
from math import inf
from typing import Any

from ..errors import AtollError


def within(owner: object, low: float, *names: str, high: float = inf) -> None:
    """Each of the named fields of ``owner`` is a number from ``low`` to ``high``."""
    for name in names:
        value = getattr(owner, name)
        if not low <= value <= high:
            wanted = f"at least {low:g}" if high == inf else f"from {low:g} to {high:g}"
            raise AtollError(f"{type(owner).__name__}: {name} is {value}, but it must be {wanted}.")


def one_of(owner: object, name: str, choices: Iterable[str]) -> None:
    """The named field of ``owner`` is one of the choices."""
    value = getattr(owner, name)
    if value not in (known := list(choices)):
        raise AtollError(f"{type(owner).__name__}: {name} is {value!r}, but it must be one of {', '.join(known)}.")


def setting(default: Any, meaning: str, source: str) -> Any:
    """A hyper-parameter: its default, what it does, and where the default comes from."""
    return field(default=default, metadata={"about": meaning, "source": source})
