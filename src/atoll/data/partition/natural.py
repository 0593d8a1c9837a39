"""Partition rows by the owners that the data name."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import AtollError
from .base import MIN_ROWS, Partition, Pool, note_if


@dataclass(frozen=True)
class Natural:
    """One client for each owner; if a number of clients is given, the largest owners."""

    def __str__(self) -> str:
        return "natural"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        if pool.owners is None:
            raise AtollError(
                "Partition 'natural': the data set names no owners of its samples. "
                "Choose another partition, such as dirichlet:0.5, or give the data an owner column."
            )
        unique, which, sizes = np.unique(pool.owners.astype(str), return_inverse=True, return_counts=True)
        names: list[str] = unique.tolist()
        able = np.flatnonzero(sizes >= MIN_ROWS)
        if not len(able):
            raise AtollError(
                f"Partition 'natural': none of the {len(names)} owners has {MIN_ROWS} samples, and one is needed to "
                "train and one to test. Choose another column of owners, or another partition, such as dirichlet:0.5."
            )
        if clients is not None and not 1 <= clients <= len(able):
            raise AtollError(
                f"Partition 'natural' with {clients} clients: {len(able)} owners have at least {MIN_ROWS} "
                f"samples. Use from 1 to {len(able)} clients, or leave the number out to take all of them."
            )
        kept = able[np.argsort(-sizes[able], kind="stable")][:clients].tolist()
        kept = sorted(kept, key=lambda i: names[i].zfill(20) if names[i].isdecimal() else names[i])
        groups = np.split(np.argsort(which, kind="stable"), np.cumsum(sizes)[:-1])
        dropped = len(names) - len(able)
        notes = note_if(dropped, f"{dropped} owners with fewer than {MIN_ROWS} samples were dropped.")
        smaller = len(able) - len(kept)
        notes += note_if(smaller, f"{smaller} smaller owners were left out; the {len(kept)} largest are the clients.")
        return Partition(tuple(names[i] for i in kept), tuple(groups[i] for i in kept), notes)
