"""Partition rows such that each client has a few classes."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import AtollError
from ..dataset import Array
from .base import MIN_ROWS, Partition, Pool, check_clients, client_names, note_if
from .counts import deal, portions, raise_to_minimum

LOW, HIGH = 0.4, 0.6  # the range of an owner's weight in a class before weights are normalised


@dataclass(frozen=True)
class Pathological:
    """The same number of classes for each client and of owners for each class (Shamsian et al., 2021).

    Args:
        classes: number of classes of each client.
        code: whether a client may draw one class twice, as in published code; otherwise its classes are distinct.
    """

    classes: int
    code: bool = False

    def __str__(self) -> str:
        return f"pathological:{self.classes}" + (":code" if self.code else "")

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        totals = pool.totals()
        present = np.flatnonzero(totals)
        owners = self._owners(n, len(present))
        least = MIN_ROWS if self.classes == 1 else 1
        self._check_rows(pool, totals, present, owners * least, owners)
        picks = self.pick_classes(n, len(present), rng)
        counts = np.zeros((n, len(totals)), dtype=np.int64)
        moved = 0
        for j, c in enumerate(present):
            shares = rng.uniform(LOW, HIGH, owners)
            exact = portions(shares, totals[c])
            sizes = raise_to_minimum(exact, least, totals[c])
            moved += int(np.maximum(sizes - exact, 0).sum())
            np.add.at(counts[:, c], np.nonzero(picks == j)[0], sizes)
        unused = int(totals.sum() - counts.sum())
        notes = note_if(moved, f"{moved} samples were moved so that every owner of a class holds some of it.")
        notes += note_if(unused, f"{unused} samples are left over from rounding and are not used.")
        return Partition(client_names(n), deal(pool.labels, counts, rng), notes)

    def pick_classes(self, clients: int, classes: int, rng: Generator) -> Array:
        """Draw the classes of each client, each time among the classes with most owners still to find.

        Returns:
            Class positions, [clients, K].
        """
        left = np.full(classes, clients * self.classes // classes)
        picks = np.empty((clients, self.classes), dtype=np.int64)
        for i in range(clients):
            held = np.zeros(classes, dtype=bool)
            for k in range(self.classes):
                open_places = left if self.code else np.where(held, -1, left)
                best = np.flatnonzero(open_places == open_places.max())
                c = best[rng.integers(len(best))]
                left[c] -= 1
                held[c] = True
                picks[i, k] = c
        return picks

    def _owners(self, clients: int, classes: int) -> int:
        """Return the number of owners of each class, or raise an AtollError that names possible numbers."""
        if self.classes > classes:
            raise AtollError(
                f"Partition '{self}': {self.classes} classes per client, but the data have {classes}. "
                f"Use at most pathological:{classes}."
            )
        if self.classes * clients % classes:
            per_client = _nearest_multiples(self.classes, classes // math.gcd(clients, classes), classes)
            of_clients = _nearest_multiples(clients, classes // math.gcd(self.classes, classes))
            ways = [f"{many} clients" for many in of_clients] + [f"pathological:{k}" for k in per_client]
            raise AtollError(
                f"Partition '{self}' with {clients} clients: {self.classes} x {clients} = {self.classes * clients} "
                f"places cannot be shared equally by {classes} classes. Use {' or '.join(ways)}."
            )
        return self.classes * clients // classes

    def _check_rows(self, pool: Pool, totals: Array, present: Array, needed: int, owners: int) -> None:
        scarce = present[totals[present] < needed]
        if len(scarce):
            c = int(scarce[totals[scarce].argmin()])
            raise AtollError(
                f"Partition '{self}': class {pool.classes[c]!r} has {totals[c]} samples, but its {owners} owners need "
                f"{needed}. Use fewer clients or fewer classes per client."
            )


def _nearest_multiples(near: int, step: int, most: int | None = None) -> list[int]:
    """Return the multiples of ``step`` next to ``near``, from ``step`` to ``most``."""
    below = near // step * step
    return [m for m in (below, below + step) if m > 0 and (most is None or m <= most)]
