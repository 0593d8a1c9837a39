"""Read a value of ``--topology``: which clients exchange uploads in a federation without a server."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from ..errors import AtollError
from ..typing import ClientId
from ..utils.parsing import from_yaml

STAR = "star"
NAMED = (STAR, "ring", "complete")
Neighbours = Mapping[ClientId, tuple[ClientId, ...]]  # of each client, in the order of the run, without itself
Edge = tuple[ClientId, ClientId]


def read_topology(text: str, clients: Sequence[ClientId]) -> Neighbours | None:
    """Return the neighbours of each client, None for a star, in which all clients talk to a server.

    Args:
        text: ``star``, ``ring``, ``complete``, or the path of a file: an edge list with two names on each line or,
            with the ending .yaml or .yml, a mapping of names to lists of neighbours.
        clients: all clients of the run.

    Raises:
        AtollError: there is no such file, or its edges do not fit the clients.
    """
    if text == STAR:
        return None
    if text == "ring":
        return _neighbours(zip(clients, [*clients[1:], clients[0]], strict=True), clients)
    if text == "complete":
        return _neighbours(combinations(clients, 2), clients)
    found = _neighbours(_read_edges(text, clients), clients)
    if alone := [i for i in clients if not found[i]]:
        raise AtollError(f"--topology {text}: client {alone[0]!r} has no edge. Give every client a neighbour.")
    return found


def _neighbours(edges: Iterable[Edge], clients: Sequence[ClientId]) -> Neighbours:
    linked: dict[ClientId, set[ClientId]] = {i: set() for i in clients}
    for a, b in edges:
        if a != b:
            linked[a].add(b)
            linked[b].add(a)
    return {i: tuple(j for j in clients if j in linked[i]) for i in clients}


def _read_edges(path: str, clients: Sequence[ClientId]) -> list[Edge]:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as reason:
        raise AtollError(
            f"--topology {path} is none of {', '.join(NAMED)}, and no file that can be read: {reason}."
        ) from reason
    edges = _from_mapping(path, text) if Path(path).suffix in (".yaml", ".yml") else _from_lines(path, text)
    for name in (name for edge in edges for name in edge):
        if name not in clients:
            raise AtollError(
                f"--topology {path} names client {name!r}, which is not in the run. Its clients are "
                f"{', '.join(clients[:10])}{', ...' if len(clients) > 10 else ''}."
            )
    return edges


def _from_lines(path: str, text: str) -> list[Edge]:
    edges = []
    for number, line in enumerate(text.splitlines(), start=1):
        names = line.partition("#")[0].replace(",", " ").split()
        if names and len(names) != 2:
            raise AtollError(
                f"--topology {path}, line {number} has {len(names)} names. Write two clients on each line: 0 1."
            )
        if names:
            edges.append((names[0], names[1]))
    return edges


def _from_mapping(path: str, text: str) -> list[Edge]:
    try:
        values = from_yaml(text)
    except ValueError as reason:
        raise AtollError(f"--topology {path} is not readable YAML: {reason}") from reason
    if not isinstance(values, dict) or not all(isinstance(others, list) for others in values.values()):
        raise AtollError(f"--topology {path} must list the neighbours of each client, such as: 0: [1, 2].")
    return [(str(name), str(other)) for name, others in values.items() for other in others]
