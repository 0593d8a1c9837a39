"""Split each client's rows into training, validation and test rows.

    client_811    train : validation : test = about 8 : 1 : 1 of everything a client owns
    client_82     8 : 2, then an eighth of the training rows for validation
    official      the official training part 4 : 1 into train and validation, and the official test part in the same mix
    auto          official where a table says which rows are for testing, otherwise client_811

Every part keeps a client's mix of classes, by largest remainders.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ..core.problems import Problem
from ..errors import AtollError, unknown
from .dataset import Array, Dataset
from .partition.counts import ROUNDING, deal
from .seeding import stream

OFFICIAL, DEFAULT = "official", "client_811"
SPLITS = (DEFAULT, "client_82", OFFICIAL)
AUTO = "auto"
TESTABLE = 3  # a client with at least this many rows of a class has a test row of it


@dataclass(frozen=True)
class ClientSplits:
    """Training, validation and test rows of every client, sorted and disjoint."""

    train: tuple[Array, ...]
    val: tuple[Array, ...]
    test: tuple[Array, ...]


def resolve(split: str, dataset: Dataset) -> str:
    """Return the split that ``auto`` stands for; other values stay as they are."""
    return split if split != AUTO else OFFICIAL if dataset.names_test_rows else DEFAULT


def check(split: str, dataset: Dataset) -> None:
    """Raise AtollError if the split is unknown or needs a test part that the data set does not have."""
    if split not in SPLITS:
        raise unknown("split", split, (*SPLITS, AUTO))
    if split == "official" and len(dataset.y_test) == 0:
        raise AtollError(
            f"Split 'official': data set {dataset.name!r} has no official test part. Use client_811 or client_82."
        )


def check_time(split: str, dataset: Dataset) -> None:
    """Raise AtollError if the split mixes rows that the data set divides by time."""
    if split != "official" and dataset.split_by_time:
        raise AtollError(
            f"Split {split!r} mixes earlier and later samples of data set {dataset.name!r}, whose test samples are the "
            "later ones. Use --split official."
        )


def split_clients(rows: Sequence[Array], labels: Array, num_classes: int, split: str, rng: Generator) -> ClientSplits:
    """Split the rows of each client.

    Args:
        rows: row indices of each client; for ``official`` only training rows, so that none become test rows here.
        labels: labels of all rows.
        num_classes: number of classes.
        split: name of the split, see the top of this module.
        rng: source of randomness.
    """
    counts = holdings(rows, labels, num_classes)
    test, val = held_out(counts, split, rng)
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    flat = np.concatenate(rows)
    group = owner * num_classes + labels[flat]
    order = np.lexsort((rng.random(len(flat)), group))
    sizes = counts.ravel()
    place = np.arange(len(flat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # a row's place in its class
    for_test = place < np.repeat(test.ravel(), sizes)
    for_val = ~for_test & (place < np.repeat((test + val).ravel(), sizes))

    def pick(chosen: Array) -> tuple[Array, ...]:
        return grouped(flat[order[chosen]], owner[order[chosen]], len(rows))

    return ClientSplits(pick(~for_test & ~for_val), pick(for_val), pick(for_test))


def split_site(name: str, rows: Array, y: Array, dataset: Dataset, split: str, seed: int) -> ClientSplits:
    """Split the rows of one owner by itself, the same way in a simulation and at a site.

    Args:
        name: name of the owner.
        rows: its row indices.
        y: the labels of these rows.
        dataset: says what the labels are. Labels of other owners have no effect.
        split: name of the split.
        seed: seed of the run.
    """
    groups, count = dataset.own_groups(y)
    made = split_clients((np.arange(len(rows)),), groups, count, split, stream(seed, "site", name, split))
    return ClientSplits(*((rows[part[0]],) for part in (made.train, made.val, made.test)))


def held_out(counts: Array, split: str, rng: Generator) -> tuple[Array, Array]:
    """Return the numbers of test and of validation rows, [clients, classes] each.

    The total of each client is fixed first and then divided over its classes.
    """
    owned = counts.sum(1)
    if split == "official":
        test = np.zeros_like(counts)
        val_total, _ = shares(owned, 1, 4)
    elif split == "client_82":
        test_total, rest = shares(owned, 2, 8)
        val_total, _ = shares(rest, 1, 7)
        test = _tested(counts, test_total, rng)
    else:
        test_total, val_total, _ = shares(owned, 1, 1, 8)
        test = _tested(counts, test_total, rng)
    return test, _drawn(counts - test, val_total, rng)


def mirror(counts: Array, totals: Array, labels: Array, rng: Generator) -> tuple[Array, ...]:
    """Choose test rows for every client in the proportions of its training rows; return positions in ``labels``.

    Client i gets round(n_test^c * n_i^c / n_train^c) rows of class c. Where the rounded numbers exceed what there is,
    those that were rounded up furthest give way, so that no row is used twice. A client that would get nothing is given
    one row of a class it owns, if any can be spared.
    """
    stock = np.bincount(labels, minlength=len(totals))
    return deal(labels, _rescued(mirrored(counts, totals, stock, rng), counts, stock), rng)


def mirrored(counts: Array, totals: Array, stock: Array, rng: Generator) -> Array:
    """Return the rounded numbers of :func:`mirror`, [clients, classes].

    Args:
        counts: training rows of each client and class.
        totals: training rows of each class.
        stock: test rows of each class.
        rng: breaks ties.
    """
    quota = counts * stock / np.maximum(totals, 1)
    given: Array = np.floor(quota + ROUNDING).astype(np.int64)
    rest = quota - given
    place = _places(rest.T, rng.random(rest.T.shape)).T
    given += (rest >= 0.5 - ROUNDING) & (place < stock - given.sum(0))
    return given


def gaps(parts: ClientSplits, labels: Array, num_classes: int, problem: Problem) -> tuple[str, ...]:
    """Return notes about clients without test rows, validation rows, or training rows of a tested class."""
    scores = "accuracies" if problem.num_classes else "scores"
    train, test = (holdings(rows, labels, num_classes) for rows in (parts.train, parts.test))
    lacking = {
        f"without a test sample, left out of personal {scores}": sum(len(rows) == 0 for rows in parts.test),
        "without a validation sample": sum(len(rows) == 0 for rows in parts.val),
        f"with test samples of a {problem.group} they have no training sample of": (
            ((test > 0) & (train == 0)).any(1).sum()
        ),
    }
    return tuple(f"Clients {what}: {number}." for what, number in lacking.items() if number)


def shares(total: Array, *weights: int) -> tuple[Array, ...]:
    """Divide each total in proportion to the weights by largest remainders; ties go to the earlier weight."""
    wide = np.broadcast_to(weights, (len(total), len(weights)))
    room = np.broadcast_to(total[:, None], wide.shape)
    return tuple(apportion(total, wide, room, np.broadcast_to(np.arange(len(weights)), wide.shape)).T)


def apportion(totals: Array, weights: Array, room: Array, ties: Array) -> Array:
    """Divide the total of each row in proportion to its weights by largest remainders.

    Args:
        totals: what to divide, [N].
        weights: proportions, [N, C].
        room: largest value of each entry, [N, C]; a total above the sum of its row is cut to it.
        ties: of equal remainders the entry with the lower value comes first, [N, C].
    """
    quota = totals[:, None] * weights / np.maximum(weights.sum(1, keepdims=True), 1)
    given: Array = np.minimum(np.floor(quota + ROUNDING).astype(np.int64), room)
    totals = np.minimum(totals, room.sum(1))
    while (left := totals - given.sum(1)).any():
        claim = np.where(given < room, quota - given, -np.inf)
        given += (_places(claim, ties) < left[:, None]) & (given < room)
    return given


def holdings(rows: Sequence[Array], labels: Array, num_classes: int) -> Array:
    """Count the rows of each class for each client, [clients, classes]."""
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    cells = owner * num_classes + labels[np.concatenate(rows)]
    return np.bincount(cells, minlength=len(rows) * num_classes).reshape(len(rows), num_classes)


def pick(labels: Array, numbers: Array, rng: Generator) -> Array:
    """Draw ``numbers[c]`` rows of each class c at random; return sorted positions."""
    totals = np.bincount(labels, minlength=len(numbers))
    order = np.lexsort((rng.random(len(labels)), labels))
    place = np.arange(len(order)) - np.repeat(np.cumsum(totals) - totals, totals)
    return np.sort(order[place < np.repeat(numbers, totals)])


def grouped(rows: Array, owner: Array, clients: int) -> tuple[Array, ...]:
    """Group rows by owner and sort each group."""
    order = np.lexsort((rows, owner))
    ends = np.cumsum(np.bincount(owner, minlength=clients))[:-1]
    return tuple(np.split(rows[order], ends))


def _tested(counts: Array, total: Array, rng: Generator) -> Array:
    return np.maximum(_drawn(counts, np.maximum(total, 1), rng), counts >= TESTABLE)


def _drawn(counts: Array, total: Array, rng: Generator) -> Array:
    """Return the rows to take from each class. The last row of a class stays unless the others are too few."""
    ties = rng.random(counts.shape)
    taken = apportion(total, counts, np.maximum(counts - 1, 0), ties)
    left = counts - taken
    return taken + apportion(total - taken.sum(1), left, left, ties)


def _places(claims: Array, ties: Array) -> Array:
    """Rank the entries of each row, largest first. Claims are rounded, so that equal ones tie."""
    return np.lexsort((ties, -claims.round(9)), axis=1).argsort(1)


def _rescued(given: Array, counts: Array, stock: Array) -> Array:
    """Give one test row to every client without any, of the class that it owns most of.

    The row is a spare one, otherwise it is taken from the client with most test rows of the class.
    """
    given = given.copy()
    for i in np.flatnonzero(given.sum(1) == 0):
        for c in np.argsort(-counts[i], kind="stable")[: np.count_nonzero(counts[i])]:
            spare = stock[c] > given[:, c].sum()
            # The donor keeps at least one row of this class.
            donor = int(given[:, c].argmax())
            if spare or given[donor, c] > 1:
                given[donor, c] -= not spare
                given[i, c] = 1
                break
    return given
