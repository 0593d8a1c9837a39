"""The error that a user can mend."""

from collections.abc import Iterable
from difflib import get_close_matches


class AtollError(Exception):
    """A mistake that the user can mend.

    The message says what is wrong, where, and what to do. Commands print it without a traceback.
    """


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> AtollError:
    """Return the error for an unknown name, with the nearest known name or a list of all.

    Args:
        kind: what the name stands for, such as ``"method"``.
        name: the name that was given.
        known: the names that would have been right.
        where: where it was given, such as ``"in plan.yaml"``.
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return AtollError(f"Unknown {kind} {name!r}{where and f' {where}'}. {hint}")
