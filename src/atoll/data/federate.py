"""Partition a data set among clients."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from ..errors import AtollError
from .dataset import Array, Dataset
from .federated_dataset import FederatedDataset, all_groups, all_owners, fingerprint, short_hash
from .partition.base import File, Pool, Scheme
from .partition.natural import Natural
from .partition.specs import parse
from .partition.uniform import Iid
from .partition_files import VERSION, load_cached, read_partition, store
from .seeding import stream
from .split import (
    DEFAULT,
    ClientSplits,
    apportion,
    check,
    check_time,
    gaps,
    grouped,
    holdings,
    mirror,
    pick,
    split_clients,
    split_site,
)


@dataclass(frozen=True)
class _Request:
    """Everything that a partition depends on besides the data set."""

    scheme: Scheme
    clients: int | None
    split: str
    public: int
    seed: int

    def __str__(self) -> str:
        many = "all" if self.clients is None else self.clients
        split = f"{self.split} by each owner alone" if isinstance(self.scheme, Natural) else self.split
        return f"{self.scheme}, {many} clients, {split}, {self.public} public rows, seed {self.seed}"

    def stream(self, purpose: str) -> Generator:
        return stream(self.seed, str(self.scheme), purpose)


def federate(
    dataset: Dataset,
    clients: int | None,
    partition: str = "dirichlet:0.5",
    split: str = DEFAULT,
    seed: int = 0,
    public: int = 0,
    cache: Path | None = None,
) -> FederatedDataset:
    """Partition a data set among clients. The same request always gives the same rows.

    Args:
        dataset: the data set to partition.
        clients: number of clients; None if the data or the partition file name them.
        partition: name of the partition, such as ``"dirichlet:0.5"``. ``"file:PATH"`` also sets split and public rows.
        split: name of the split into training, validation and test rows.
        seed: seed of all random choices.
        public: number of training rows to set aside as public.
        cache: folder in which results are stored and found again.

    Raises:
        AtollError: the data cannot be partitioned in this way.
    """
    scheme = parse(partition)
    check(split, dataset)
    _check_scheme(scheme, dataset)
    content = fingerprint(dataset)
    if isinstance(scheme, File):
        return read_partition(dataset, content, scheme.path, clients, public)
    check_time(split, dataset)
    request = _Request(scheme, clients, split, public, seed)
    # Without the folder of a file: the same data in another place have the same partition.
    shown = re.sub(r"[^?&=]*/", "", dataset.name)  # without folders, also of a schema among the options
    recipe = f"{shown} ({content}), {request}"
    name = short_hash(VERSION, recipe)
    if cache is not None and (kept := load_cached(dataset, content, cache, name)):
        return kept
    made = replace(_partition(dataset, request), recipe=recipe, name=name)
    if cache is not None:
        store(made, content, cache)
    return made


def _check_scheme(scheme: Scheme | File, dataset: Dataset) -> None:
    """Raise an AtollError if a partition divides rows by class and there are neither classes nor ranges of numbers."""
    if not dataset.num_classes and len(dataset.groups) == 1 and not isinstance(scheme, Iid | Natural | File):
        raise AtollError(
            f"Partition '{scheme}' divides samples by class, but labels are {dataset.problem.labels}. "
            "Use --partition iid, natural (samples with owners) or file:PATH."
        )


def _partition(dataset: Dataset, request: _Request) -> FederatedDataset:
    """Set public rows aside, partition the rest, and split the rows of each client."""
    scheme, split = request.scheme, request.split
    public, notes = _set_aside(dataset, request.public, stream(request.seed, "public"))
    rows, left_out = _rows_to_partition(dataset, scheme, split, public)
    labels, owners = all_groups(dataset), all_owners(dataset)
    pool = Pool(labels[rows], dataset.groups, None if owners is None else owners[rows])
    partition = scheme.divide(pool, request.clients, request.stream("partition"))
    owned = tuple(rows[positions] for positions in partition.rows)
    parts = _split(owned, labels, dataset, partition.clients, request)
    if split == "official":
        if isinstance(scheme, Natural) and dataset.owner_test is not None:
            test = _test_rows_by_owner(dataset.owner_test, partition.clients)
        else:
            counts = holdings(owned, labels, len(dataset.groups))
            test = mirror(counts, pool.totals(), dataset.group_numbers(dataset.y_test), request.stream("test"))
        parts = replace(parts, test=tuple(positions + len(dataset.y_train) for positions in test))
    notes = dataset.notes + notes + left_out + partition.notes
    notes += gaps(parts, labels, len(dataset.groups), dataset.problem)
    return FederatedDataset(dataset, partition.clients, parts.train, parts.val, parts.test, public, notes, name="")


def _split(
    owned: tuple[Array, ...], labels: Array, dataset: Dataset, clients: tuple[str, ...], request: _Request
) -> ClientSplits:
    """Split the rows of each client. Owners that the data name split their rows by themselves, as sites do."""
    groups = len(dataset.groups)
    if not isinstance(request.scheme, Natural):
        return split_clients(owned, labels, groups, request.split, request.stream(request.split))
    y = np.concatenate([dataset.y_train, dataset.y_test])
    each = [
        split_site(i, rows, y[rows], dataset, request.split, request.seed)
        for i, rows in zip(clients, owned, strict=True)
    ]
    return ClientSplits(*(tuple(getattr(own, part)[0] for own in each) for part in ("train", "val", "test")))


def _set_aside(dataset: Dataset, public: int, rng: Generator) -> tuple[Array, tuple[str, ...]]:
    """Choose public rows from the training part, as evenly over the classes as their sizes allow."""
    totals = np.bincount(dataset.group_numbers(dataset.y_train), minlength=len(dataset.groups))
    room = totals // 2  # clients keep at least half of every class
    if not 0 <= public <= room.sum():
        raise AtollError(
            f"{public} public samples cannot be set aside from data set {dataset.name!r}. Use from 0 to {room.sum()}: "
            "the clients keep half of every class."
        )
    even = apportion(np.array([public]), (totals > 0)[None].astype(int), room[None], rng.random((1, len(totals))))[0]
    chosen = pick(dataset.group_numbers(dataset.y_train), even, rng)
    held = even[totals > 0]
    uneven = held.max() - held.min() > 1
    note = f"Public samples per class run from {held.min()} to {held.max()}, because small classes keep half of theirs."
    return chosen, (note,) if uneven else ()


def _rows_to_partition(dataset: Dataset, scheme: Scheme, split: str, aside: Array) -> tuple[Array, tuple[str, ...]]:
    """Return all rows that are not public, without the test part if the split keeps it, and notes."""
    trained, tested = len(dataset.y_train), len(dataset.y_test)
    unowned = isinstance(scheme, Natural) and dataset.owner_test is None
    end = trained if split == "official" or unowned else trained + tested
    left_out = f"{tested} samples of the official test part have no owner and are left out."
    notes = (left_out,) if unowned and tested and split != "official" else ()
    return np.setdiff1d(np.arange(end), aside, assume_unique=True), notes


def _test_rows_by_owner(owners: Array, clients: tuple[str, ...]) -> tuple[Array, ...]:
    """Return the positions of every client's rows in the test part."""
    number = {client: i for i, client in enumerate(clients)}
    owner = np.array([number.get(name, -1) for name in owners.astype(str).tolist()])
    known = np.flatnonzero(owner >= 0)
    return grouped(known, owner[known], len(clients))
