"""Declare hyper-parameters and check their values."""

from collections.abc import Iterable
from dataclasses import field
from math import inf
from typing import Any

from ..errors import AtollError


def within(owner: object, low: float, *names: str, high: float = inf) -> None:
    """Check that fields of ``owner`` are numbers from ``low`` to ``high``.

    Raises:
        AtollError: for the first field out of range.
    """
    for name in names:
        value = getattr(owner, name)
        if not low <= value <= high:
            wanted = f"at least {low:g}" if high == inf else f"from {low:g} to {high:g}"
            raise AtollError(f"{type(owner).__name__}: {name} is {value}, but it must be {wanted}.")


def one_of(owner: object, name: str, choices: Iterable[str]) -> None:
    """Check that a field of ``owner`` is one of the choices.

    Raises:
        AtollError: if it is not.
    """
    value = getattr(owner, name)
    if value not in (known := list(choices)):
        raise AtollError(f"{type(owner).__name__}: {name} is {value!r}, but it must be one of {', '.join(known)}.")


def setting(default: Any, meaning: str, source: str) -> Any:
    """Declare a hyper-parameter as a dataclass field.

    Args:
        default: the default value.
        meaning: what the hyper-parameter does, in one phrase.
        source: where the default comes from, such as a paper's section.
    """
    return field(default=default, metadata={"about": meaning, "source": source})
