"""Partition rows such that each client has a few classes, in unequal shares."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import AtollError
from .base import MIN_ROWS, Partition, Pool, check_clients, client_names, note_if
from .counts import cut, deal, fill_small_clients, raise_to_minimum
from .pathological import Pathological


@dataclass(frozen=True)
class FewClasses:
    """Draw the classes of each client first, and the shares of each class from Dir(beta) over its owners.

    Args:
        classes: number of classes of each client.
        beta: the smaller, the less equal the shares of a class.
    """

    classes: int
    beta: float

    def __str__(self) -> str:
        return f"classes:{self.classes}:{self.beta:g}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        totals = pool.totals()
        present = np.flatnonzero(totals)
        if self.classes > len(present):
            raise AtollError(
                f"Partition '{self}': {self.classes} classes per client, but the data have {len(present)}. "
                f"Use at most classes:{len(present)}:{self.beta:g}."
            )
        picks = Pathological(self.classes).pick_classes(n, len(present), rng)
        counts = np.zeros((n, len(totals)), dtype=np.int64)
        unused = 0
        for j, c in enumerate(present):
            owners = np.flatnonzero((picks == j).any(1))
            if len(owners) > totals[c]:
                raise AtollError(
                    f"Partition '{self}': class {pool.classes[c]!r} has {totals[c]} samples, but {len(owners)} owners. "
                    "Use fewer clients or fewer classes per client."
                )
            if not len(owners):
                unused += int(totals[c])
                continue
            drawn = cut(rng.dirichlet(np.full(len(owners), self.beta))[:, None], totals[c : c + 1])[:, 0]
            counts[owners, c] = raise_to_minimum(drawn, 1, totals[c])
        if counts.sum() < MIN_ROWS * n:
            raise AtollError(
                f"Partition '{self}': the drawn classes hold {counts.sum()} of the {MIN_ROWS * n} samples that the "
                "clients need together. Use fewer clients or more classes per client."
            )
        counts, moved = fill_small_clients(counts, MIN_ROWS)
        notes = note_if(moved, f"{moved} samples were moved so that every client has at least {MIN_ROWS}.")
        notes += note_if(unused, f"{unused} samples are of classes that no client drew and are not used.")
        return Partition(client_names(n), deal(pool.labels, counts, rng), notes)
