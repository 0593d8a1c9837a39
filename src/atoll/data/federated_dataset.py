"""Define a data set that is partitioned among clients."""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import AtollError
from ..utils.notebook import html
from .dataset import Array, Dataset
from .split import holdings

if TYPE_CHECKING:
    from _hashlib import HASH

    from matplotlib.figure import Figure

Part = Literal["train", "val", "test"]
PARTS: tuple[Part, ...] = ("train", "val", "test")
CHUNK = 1 << 24  # bytes hashed at a time
SHOWN = 20  # clients in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """A data set with the rows of every client.

    Rows are indices into the training part followed by the test part. All index arrays are sorted, and no row is in two
    of them.
    """

    dataset: Dataset
    clients: tuple[str, ...]
    train: tuple[Array, ...]  # int64 [n_i] for every client
    val: tuple[Array, ...]
    test: tuple[Array, ...]
    public: Array  # int64: rows set aside for distillation, whose labels methods must not use
    notes: tuple[str, ...]  # changes and omissions that made the partition possible
    name: str  # short hash of everything that the partition depends on
    recipe: str = ""  # the same as one line of text

    def __post_init__(self) -> None:
        for client in self.clients:
            if any("\ud800" <= c <= "\udfff" for c in client):
                raise AtollError(
                    f"The name of client {client!r} contains half a character, which files cannot store. "
                    "Rename the client."
                )

    def __repr__(self) -> str:
        train, val, test = (sum(map(len, self.part(part))) for part in PARTS)
        rows = f"{train} samples to train, {val} to validate, {test} to test"
        public = f", {len(self.public)} public" if len(self.public) else ""
        return f"<Federation {self.name} of {self.dataset.name}: {len(self.clients)} clients, {rows}{public}>"

    def _repr_html_(self) -> str:
        counts = self.counts()[:SHOWN].tolist()
        rows = [[client, sum(held), *held] for client, held in zip(self.clients, counts, strict=False)]
        return html(repr(self)[1:-1], ("client", "train", *self.dataset.groups), rows)

    def plot(self) -> "Figure":
        """Draw the rows of each class that each client holds."""
        from ..report import plots  # drawing takes long to import

        data = self.dataset
        title = f"Training samples of {self.name}"
        return plots.holdings(self.counts().tolist(), self.clients, data.groups, title=title, group=data.problem.group)

    def holdings(self) -> dict[str, object]:
        """Return the number of rows of each class by client and part, as in holdings.json."""
        return {
            "name": self.name,
            "clients": list(self.clients),
            "classes": list(self.dataset.groups),
            **{part: self.counts(part).tolist() for part in PARTS},
            "notes": list(self.notes),
        }

    def part(self, part: Part) -> tuple[Array, ...]:
        """Return the row indices of every client in one part."""
        return {"train": self.train, "val": self.val, "test": self.test}[part]

    def owned(self, at: int) -> Array:
        """Return the row indices of the client at a position, in all parts."""
        return np.concatenate([self.train[at], self.val[at], self.test[at]])

    def split_off(self, last: int) -> tuple["FederatedDataset", "FederatedDataset"]:
        """Split off the last ``last`` clients.

        Returns:
            The other clients, and the last ones. Both keep the public rows.

        Raises:
            AtollError: no client would remain on one side.
        """
        count = len(self.clients)
        if not 0 < last < count:
            raise AtollError(
                f"--new-clients {last}: of {count} clients, 1 to {count - 1} can stay out of the run. Change the "
                "number, or have more --clients."
            )
        return self._select(0, count - last), self._select(count - last, count)

    def _select(self, start: int, end: int) -> "FederatedDataset":
        recipe = f"{self.recipe}, clients {start} to {end - 1}"
        return replace(
            self,
            clients=self.clients[start:end],
            train=self.train[start:end],
            val=self.val[start:end],
            test=self.test[start:end],
            name=short_hash(self.name, start, end),
            recipe=recipe,
        )

    def counts(self, part: Part = "train") -> Array:
        """Return the number of rows of each class, or other group, for each client."""
        return holdings(self.part(part), all_groups(self.dataset), len(self.dataset.groups))

    def rows(self, indices: Array) -> Array:
        """Return the inputs at these indices without joining the two parts in memory."""
        return _gather(self.dataset.x_train, self.dataset.x_test, indices)

    def labels(self, indices: Array) -> Array:
        """Return the labels at these indices."""
        return _gather(self.dataset.y_train, self.dataset.y_test, indices)


def fingerprint(dataset: Dataset) -> str:
    """Return a short hash of the content of a data set, without its name."""
    digest = sha256(repr(dataset.classes).encode())
    if dataset.columns:
        digest.update(repr(dataset.columns).encode())
    for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
        update_hash(digest, array)
    for owners in (dataset.owner_train, dataset.owner_test):
        digest.update(b"-" if owners is None else repr(owners.astype(str).tolist()).encode())
    return digest.hexdigest()[:12]


def update_hash(digest: "HASH", array: Array) -> None:
    """Add type, shape and content of an array to a hash, in chunks."""
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    step = max(1, CHUNK // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        digest.update(array[start : start + step].tobytes())


def short_hash(*parts: object) -> str:
    """Return a short hash of plain values."""
    return sha256(repr(parts).encode()).hexdigest()[:12]


def all_groups(dataset: Dataset) -> Array:
    """Return the group numbers of the training part followed by those of the test part."""
    return np.concatenate([dataset.group_numbers(dataset.y_train), dataset.group_numbers(dataset.y_test)])


def all_owners(dataset: Dataset) -> Array | None:
    """Return the owners of training and test rows, or None if the data name none; unknown ones are empty."""
    if dataset.owner_train is None:
        return None
    tested = dataset.owner_test if dataset.owner_test is not None else np.full(len(dataset.y_test), "")
    return np.concatenate([dataset.owner_train.astype(str), tested.astype(str)])


def _gather(first: Array, second: Array, indices: Array) -> Array:
    """Return ``concatenate([first, second])[indices]`` without making the concatenation."""
    later = indices >= len(first)
    if not later.any():
        return np.asarray(first[indices])
    out = np.empty((len(indices), *first.shape[1:]), dtype=first.dtype)
    out[~later] = first[indices[~later]]
    out[later] = second[indices[later] - len(first)]
    return out
