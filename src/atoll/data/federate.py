"""Divide a data set among clients."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from ..errors import AtollError
from .dataset import Array, Dataset
from .federated_dataset import FederatedDataset, _pool_labels, _pool_owners, _short, fingerprint
from .partition.base import File, Pool, Scheme
from .partition.natural import Natural
from .partition.specs import parse
from .partition_files import VERSION, _load_cached, _read_partition, _store
from .seeding import stream
from .split import apportion, check, gaps, grouped, holdings, mirror, pick, split_clients

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class _Request:
    """Everything a division depends on besides the data set."""

    scheme: Scheme
    clients: int | None
    split: str
    public: int
    seed: int

    def __str__(self) -> str:
        many = "all" if self.clients is None else self.clients
        return f"{self.scheme}, {many} clients, {self.split}, {self.public} public rows, seed {self.seed}"

    def stream(self, purpose: str) -> Generator:
        return stream(self.seed, str(self.scheme), purpose)


def federate(
    dataset: Dataset,
    clients: int | None,
    partition: str = "dirichlet:0.5",
    split: str = "client_811",
    seed: int = 0,
    public: int = 0,
    cache: Path | None = None,
) -> FederatedDataset:
    """Divide a data set among clients. The same request always gives the same rows.

    Args:
        dataset: the data set to divide.
        clients: number of clients; None if the data or the partition file name them.
        partition: how to divide, such as ``"dirichlet:0.5"``; ``"file:PATH"`` brings its own split and public rows.
        split: how a client's rows become training, validation and test rows.
        seed: decides every random choice.
        public: number of training rows to set aside as public.
        cache: folder that keeps the result for the next time.

    Raises:
        AtollError: if the data cannot be divided in this way.
    """
    scheme = parse(partition)
    check(split, dataset)
    content = fingerprint(dataset)
    if isinstance(scheme, File):
        return _read_partition(dataset, content, scheme.path, clients, public)
    request = _Request(scheme, clients, split, public, seed)
    recipe = f"{dataset.name} ({content}), {request}"
    name = _short(VERSION, recipe)
    if cache is not None and (kept := _load_cached(dataset, content, cache, name)):
        return kept
    made = replace(_made(dataset, request), recipe=recipe, name=name)
    if cache is not None:
        _store(made, content, cache)
    return made


def _made(dataset: Dataset, request: _Request) -> FederatedDataset:
    scheme, split = request.scheme, request.split
    public, notes = _set_aside(dataset, request.public, stream(request.seed, "public"))
    divisible, left_out = _divisible(dataset, scheme, split, public)
    labels, owners = _pool_labels(dataset), _pool_owners(dataset)
    pool = Pool(labels[divisible], dataset.classes, None if owners is None else owners[divisible])
    division = scheme.divide(pool, request.clients, request.stream("partition"))
    owned = tuple(divisible[positions] for positions in division.rows)
    parts = split_clients(owned, labels, dataset.num_classes, split, request.stream(split))
    if split == "official":
        if isinstance(scheme, Natural) and dataset.owner_test is not None:
            test = _own_tests(dataset.owner_test, division.clients)
        else:
            counts = holdings(owned, labels, dataset.num_classes)
            test = mirror(counts, pool.totals(), dataset.y_test, request.stream("test"))
        parts = replace(parts, test=tuple(rows + len(dataset.y_train) for rows in test))
    notes += left_out + division.notes + gaps(parts, labels, dataset.num_classes)
    return FederatedDataset(dataset, division.clients, parts.train, parts.val, parts.test, public, notes, name="")


def _set_aside(dataset: Dataset, public: int, rng: Generator) -> tuple[Array, tuple[str, ...]]:
    """Choose public rows from the training part, as evenly over the classes as their sizes allow."""
    totals = np.bincount(dataset.y_train, minlength=dataset.num_classes)
    room = totals // 2  # clients keep at least half of every class
    if not 0 <= public <= room.sum():
        raise AtollError(
            f"{public} public rows cannot be set aside from data set {dataset.name!r}. Use from 0 to {room.sum()}: "
            "the clients keep half of every class."
        )
    even = apportion(np.array([public]), (totals > 0)[None].astype(int), room[None], rng.random((1, len(totals))))[0]
    chosen = pick(dataset.y_train, even, rng)
    held = even[totals > 0]
    uneven = held.max() - held.min() > 1
    note = f"Public rows per class run from {held.min()} to {held.max()}, because small classes keep half their rows."
    return chosen, (note,) if uneven else ()


def _divisible(dataset: Dataset, scheme: Scheme, split: str, aside: Array) -> tuple[Array, tuple[str, ...]]:
    """Return the rows to divide: all that are not public, without the test part if it is kept as it is."""
    trained, tested = len(dataset.y_train), len(dataset.y_test)
    unowned = isinstance(scheme, Natural) and dataset.owner_test is None
    end = trained if split == "official" or unowned else trained + tested
    left_out = f"{tested} rows of the official test part have no owner and are left out."
    notes = (left_out,) if unowned and tested and split != "official" else ()
    return np.setdiff1d(np.arange(end), aside, assume_unique=True), notes


def _own_tests(owners: Array, clients: tuple[str, ...]) -> tuple[Array, ...]:
    """Return the positions of every client's rows in the test part."""
    number = {client: i for i, client in enumerate(clients)}
    owner = np.array([number.get(name, -1) for name in owners.astype(str).tolist()])
    known = np.flatnonzero(owner >= 0)
    return grouped(known, owner[known], len(clients))
