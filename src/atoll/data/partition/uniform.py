"""Partition rows at random into equal parts."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from .base import MIN_ROWS, Partition, Pool, check_clients, client_names


@dataclass(frozen=True)
class Iid:
    """Equal parts of a shuffled pool."""

    def __str__(self) -> str:
        return "iid"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        parts = np.array_split(rng.permutation(len(pool.labels)), n)
        return Partition(client_names(n), tuple(np.sort(part) for part in parts))
