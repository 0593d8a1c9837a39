"""Partition rows into shards of sorted labels."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import AtollError
from .base import MIN_ROWS, Partition, Pool, check_clients, client_names


@dataclass(frozen=True)
class Shards:
    """Sort rows by label, cut them into equal shards, and deal each client the same number of them.

    McMahan et al., AISTATS 2017, with 2 shards for each client.

    Args:
        shards: shards of each client.
    """

    shards: int

    def __str__(self) -> str:
        return f"shards:{self.shards}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        count = n * self.shards
        if count > len(pool.labels):
            raise AtollError(
                f"Partition '{self}' with {n} clients: {count} shards, but only {len(pool.labels)} samples. Use fewer "
                "clients or fewer shards."
            )
        by_label = np.lexsort((rng.random(len(pool.labels)), pool.labels))
        shards = np.array_split(by_label, count)
        hands = rng.permutation(count).reshape(n, self.shards)
        return Partition(client_names(n), tuple(np.sort(np.concatenate([shards[s] for s in hand])) for hand in hands))
