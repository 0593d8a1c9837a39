"""Partition rows such that clients differ in their number of rows, not in their classes."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from .base import MIN_ROWS, Partition, Pool, check_clients, client_names, note_if
from .counts import cut, raise_to_minimum


@dataclass(frozen=True)
class Quantity:
    """Parts of a shuffled pool whose sizes are one draw from Dir(beta) over the clients (quantity skew).

    Args:
        beta: the smaller, the less equal the sizes.
    """

    beta: float

    def __str__(self) -> str:
        return f"quantity:{self.beta:g}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        rows = len(pool.labels)
        drawn = cut(rng.dirichlet(np.full(n, self.beta))[:, None], np.array([rows]))[:, 0]
        sizes = raise_to_minimum(drawn, MIN_ROWS, rows)
        moved = int(np.maximum(sizes - drawn, 0).sum())
        parts = np.split(rng.permutation(rows), np.cumsum(sizes)[:-1])
        notes = note_if(moved, f"{moved} samples were moved so that every client has at least {MIN_ROWS}.")
        return Partition(client_names(n), tuple(np.sort(part) for part in parts), notes)
