"""Compute how many rows of each class a client gets, and draw the rows."""

import numpy as np
from numpy.random import Generator

from ..dataset import Array

ROUNDING = 1e-9  # a product that is a whole number up to floating-point error counts as that number


def portions(weights: Array, rows: int) -> Array:
    """Return the number of rows of each owner in proportion to weights, rounded down. Rows may remain unused."""
    whole: Array = np.floor(weights / weights.sum() * rows + ROUNDING).astype(np.int64)
    return whole


def raise_to_minimum(sizes: Array, least: int, rows: int) -> Array:
    """Raise every size to ``least``, with unused rows first and then with rows of the largest owners.

    Args:
        sizes: rows of each owner.
        least: smallest allowed size.
        rows: number of all rows, at least ``least`` for each owner.
    """
    raised = np.maximum(sizes, least)
    for _ in range(int(raised.sum() - rows)):
        raised[raised.argmax()] -= 1
    return raised


def cut(proportions: Array, totals: Array) -> Array:
    """Cut each class at its cumulated proportions, rounded down.

    Args:
        proportions: share of each client in each class, [clients, classes].
        totals: rows of each class, [classes].

    Returns:
        Rows of each client and class, [clients, classes].
    """
    edges = np.floor(np.cumsum(proportions, 0) * totals + ROUNDING).astype(np.int64)
    edges[-1] = totals
    return np.diff(edges, axis=0, prepend=0)


def fill_small_clients(counts: Array, min_rows: int) -> tuple[Array, int]:
    """Move rows until every client has at least ``min_rows``; return the new counts and the number of moved rows.

    A row comes from the largest client that holds the most frequent class of the small client, so that this class can
    be trained and tested. A client without rows starts with the most frequent class of the largest client.
    """
    counts = counts.copy()
    sizes = counts.sum(1)
    moved = 0
    for small in np.flatnonzero(sizes < min_rows):
        while sizes[small] < min_rows:
            label = counts[small].argmax()
            able = np.where((counts[:, label] > 0) & (sizes > min_rows), sizes, 0)
            donor = able.argmax()
            if sizes[small] == 0 or not able[donor]:
                donor = sizes.argmax()
                label = counts[donor].argmax()
            counts[[donor, small], label] += (-1, 1)
            sizes[[donor, small]] += (-1, 1)
            moved += 1
    return counts, moved


def deal(labels: Array, counts: Array, rng: Generator) -> tuple[Array, ...]:
    """Draw ``counts[client, class]`` random rows of each class for each client; return sorted positions."""
    clients, classes = counts.shape
    shuffled = np.lexsort((rng.random(len(labels)), labels))
    spare = np.bincount(labels, minlength=classes) - counts.sum(0)
    owners = np.tile(np.arange(clients + 1), classes)  # the last one stands for unused rows
    owner = np.repeat(owners, np.vstack([counts, spare]).T.ravel())
    order = np.lexsort((shuffled, owner))
    return tuple(np.split(shuffled[order], np.cumsum(counts.sum(1)))[:clients])


def draw_from_mix(mix: Array, rows: int, stock: Array, rng: Generator) -> Array:
    """Draw rows from a class distribution as long as the stock of a class lasts.

    Every pass of the loop draws all rows or exhausts a class, so the loop terminates.

    Args:
        mix: class distribution, [C].
        rows: number of rows to draw.
        stock: rows that are left of each class, [C].
        rng: source of randomness.

    Returns:
        Rows of each class, [C].
    """
    taken = np.zeros_like(stock)
    while rows > 0:
        odds = mix * (stock > taken)
        if odds.sum() <= ROUNDING:
            odds = (stock - taken).astype(float)
        drawn = np.minimum(rng.multinomial(rows, odds / odds.sum()), stock - taken)
        taken += drawn
        rows -= int(drawn.sum())
    return taken
