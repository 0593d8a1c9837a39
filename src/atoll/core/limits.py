"""Tell which schedules and topologies a method cannot have, and why."""

from .contract import exchanges_of
from .hooks import KeepsStatePerClient
from .method import AnyMethod, traits_of


def why_synchronous(method: AnyMethod) -> str | None:
    """Return why a method runs in synchronous rounds only, as part of a sentence; None if it has any schedule."""
    if len(exchanges_of(method)) > 1:
        return "clients wait for each other between the exchanges of a round"
    return traits_of(method).star_only


def why_star(method: AnyMethod) -> str | None:
    """Return why a method needs a server, as part of a sentence; None if it has any topology."""
    if isinstance(method, KeepsStatePerClient):
        return "its server keeps a state for each client, and every client would keep one for every other"
    return traits_of(method).star_only
