"""Partition small pools of rows."""

import numpy as np

from atoll.data.partition.base import File, Partition, Pool
from atoll.data.partition.specs import parse


def make_pool(*totals: int, owners: np.ndarray | None = None) -> Pool:
    """Return a shuffled pool with ``totals[c]`` rows of each class c."""
    labels = np.repeat(np.arange(len(totals)), totals)
    labels = np.random.default_rng(0).permutation(labels)
    return Pool(labels, tuple(f"class {c}" for c in range(len(totals))), owners)


def divide(spec: str, pool: Pool, clients: int | None, seed: int = 0) -> Partition:
    """Partition a pool by the scheme that ``spec`` names."""
    scheme = parse(spec)
    assert not isinstance(scheme, File)
    return scheme.divide(pool, clients, np.random.default_rng(seed))


def count_rows(pool: Pool, partition: Partition) -> np.ndarray:
    """Return the rows of each client and class, [clients, classes]."""
    return np.array([np.bincount(pool.labels[r], minlength=len(pool.classes)) for r in partition.rows])
