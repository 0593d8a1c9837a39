"""What a user did wrong, said once and clearly."""

from collections.abc import Iterable
from difflib import get_close_matches


class AtollError(Exception):
    """A mistake the user can mend: the message says what is wrong, where, and what to do. No traceback is shown."""


def unknown(kind: str, name: str, known: Iterable[str]) -> AtollError:
    """The error for a name nobody knows, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return AtollError(f"Unknown {kind} {name!r}. {hint}")
