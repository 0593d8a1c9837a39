"""Partition rows by draws from Dirichlet distributions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ..dataset import Array
from .base import MIN_ROWS, Partition, Pool, check_clients, client_names, note_if
from .counts import ROUNDING, cut, deal, draw_from_mix, fill_small_clients

CAPPED_MIN_ROWS = 10
DRAWS = 100  # attempts before the best draw is corrected instead
TURNS = 10  # ByClient: instalments in which clients draw, so that late clients do not get only the remaining classes


@dataclass(frozen=True)
class Dirichlet:
    """Each class is cut at the cumulated proportions of one draw from Dir(beta) over the clients."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_format(self.beta)}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        totals = pool.totals()

        def draw() -> Array:
            return cut(rng.dirichlet(np.full(n, self.beta), len(totals)).T, totals)

        return _draw_until_filled(pool, draw, MIN_ROWS, rng)


@dataclass(frozen=True)
class Capped:
    """As ``Dirichlet``, class by class, but a client that already has its equal share of all rows is skipped."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_format(self.beta)}:capped"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, CAPPED_MIN_ROWS)
        totals = pool.totals()
        equal_share = len(pool.labels) / n

        def draw() -> Array:
            counts = np.zeros((n, len(totals)), dtype=np.int64)
            for c in np.flatnonzero(totals):
                room = counts.sum(1) < equal_share
                odds = rng.dirichlet(np.full(n, self.beta)) * room
                # With a small beta all probability may fall on clients that are full.
                odds = odds if odds.sum() > ROUNDING else room
                counts[:, c] = cut(odds[:, None] / odds.sum(), totals[c : c + 1])[:, 0]
            return counts

        return _draw_until_filled(pool, draw, CAPPED_MIN_ROWS, rng)


@dataclass(frozen=True)
class Masked:
    """Each client takes part in a class with probability ``share``; rows of the class are drawn independently."""

    beta: float
    share: float

    def __str__(self) -> str:
        return f"dirichlet:{_format(self.beta)}:masked={_format(self.share)}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        totals = pool.totals()
        present = np.flatnonzero(totals)

        def draw() -> Array:
            mask = self.draw_mask(n, len(present), rng)
            counts = np.zeros((n, len(totals)), dtype=np.int64)
            for j, c in enumerate(present):
                members = np.flatnonzero(mask[:, j])
                counts[members, c] = rng.multinomial(totals[c], rng.dirichlet(np.full(len(members), self.beta)))
            return counts

        return _draw_until_filled(pool, draw, MIN_ROWS, rng)

    def draw_mask(self, clients: int, classes: int, rng: Generator) -> Array:
        """Draw which client takes part in which class, bool [clients, classes]; no row and no column is empty."""
        mask = rng.random((clients, classes)) < self.share
        for j in np.flatnonzero(~mask.any(0)):
            mask[rng.integers(clients), j] = True
        for i in np.flatnonzero(~mask.any(1)):
            mask[i, rng.integers(classes)] = True
        return mask


@dataclass(frozen=True)
class ByClient:
    """Clients of equal size, each with its own class distribution from Dir(beta * class frequencies)."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_format(self.beta)}:client"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = check_clients(pool, clients, MIN_ROWS)
        totals = pool.totals()
        present = np.flatnonzero(totals)
        stock = totals[present]
        mixes = rng.dirichlet(self.beta * stock / stock.sum(), n)
        sizes = np.array([len(part) for part in np.array_split(pool.labels, n)])
        counts = np.zeros((n, len(totals)), dtype=np.int64)
        for turn in range(1, TURNS + 1):
            for i in rng.permutation(n):
                rows = int(sizes[i] * turn // TURNS - counts[i].sum())
                taken = draw_from_mix(mixes[i], rows, stock, rng)
                stock = stock - taken
                counts[i, present] += taken
        return Partition(client_names(n), deal(pool.labels, counts, rng))


def _draw_until_filled(pool: Pool, draw: Callable[[], Array], min_rows: int, rng: Generator) -> Partition:
    """Draw counts until every client has ``min_rows`` rows; after ``DRAWS`` attempts, correct the best draw."""
    best, draws = draw(), 1
    while _missing_rows(best, min_rows) and draws < DRAWS:
        best, draws = min(best, draw(), key=lambda counts: _missing_rows(counts, min_rows)), draws + 1
    small = int((best.sum(1) < min_rows).sum())
    best, moved = fill_small_clients(best, min_rows)
    notes = note_if(draws > 1 and not moved, f"Drawn {draws} times until every client had {min_rows} samples.")
    notes += note_if(
        moved,
        f"In {DRAWS} draws some client always had fewer than {min_rows} samples; in the best of them {small} clients "
        f"were given {moved} samples of the largest clients.",
    )
    return Partition(client_names(len(best)), deal(pool.labels, best, rng), notes)


def _missing_rows(counts: Array, min_rows: int) -> int:
    return int(np.maximum(min_rows - counts.sum(1), 0).sum())


def _format(value: float) -> str:
    """Return the shortest text that reads back as ``value``; ``1`` rather than ``1.0``."""
    return repr(value).removesuffix(".0")
