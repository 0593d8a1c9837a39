"""Define the input and the result of a partition, and the interface of all partition schemes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.random import Generator

from ...errors import AtollError
from ..dataset import Array

MIN_ROWS = 2  # of a client: one to train on, one to test on


@dataclass(frozen=True)
class Pool:
    """The rows to partition: their labels and, if the data name them, their owners."""

    labels: Array  # int64 [n]
    classes: tuple[str, ...]
    owners: Array | None = None  # str [n]

    def totals(self) -> Array:
        """Return the number of rows of each class, [C]."""
        return np.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True)
class Partition:
    """Disjoint rows of the clients, as sorted positions in the pool. Some rows may be unused."""

    clients: tuple[str, ...]
    rows: tuple[Array, ...]
    notes: tuple[str, ...] = ()


class Scheme(Protocol):
    """A way to partition a pool. ``str(scheme)`` is its specification in normal form."""

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        """Partition the rows of ``pool``.

        Args:
            pool: the rows.
            clients: number of clients; None for all owners that the data name.
            rng: source of randomness.

        Raises:
            AtollError: the pool cannot be partitioned in this way.
        """


@dataclass(frozen=True)
class File:
    """A partition that is read from a file, with its own clients and splits."""

    path: Path


def client_names(clients: int) -> tuple[str, ...]:
    """Return the numbers from 0 on as names of clients."""
    return tuple(str(i) for i in range(clients))


def check_clients(pool: Pool, clients: int | None, min_rows: int) -> int:
    """Return the number of clients.

    Raises:
        AtollError: the number is missing, or the pool has fewer than ``min_rows`` rows for each client.
    """
    if clients is None:
        raise AtollError("This partition needs the number of clients. Give a number, for example 10.")
    if clients < 1:
        raise AtollError(f"{clients} clients cannot share samples. Use at least 1 client.")
    rows = len(pool.labels)
    if rows < min_rows * clients:
        raise AtollError(
            f"{rows} samples cannot give each of {clients} clients the {min_rows} samples it needs. "
            f"Use at most {rows // min_rows} clients, or more data."
        )
    return clients


def note_if(condition: object, note: str) -> tuple[str, ...]:
    """Return the note if the condition holds, otherwise no note."""
    return (note,) if condition else ()
