"""Define a labelled data set before it is partitioned among clients."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import AtollError

Array = NDArray[Any]  # the element type depends on the content, such as uint8 for images
Kind = Literal["image", "table", "text"]


@dataclass(frozen=True, repr=False)
class Dataset:
    """Training and test rows with labels.

    A data set without an official test part has empty test arrays. Rows may name their owners, such as hospitals.
    """

    name: str
    kind: Kind
    x_train: Array  # image: uint8 [N, channels, H, W]; table: float32 [N, columns]; text: int64 token ids [N, length]
    y_train: Array  # int64 [N], 0 to C - 1
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]  # a name for every label
    owner_train: Array | None = None  # str [N]: the owner of each row, if the data name owners
    owner_test: Array | None = None

    def __post_init__(self) -> None:
        self._check_part("train", self.x_train, self.y_train, self.owner_train)
        self._check_part("test", self.x_test, self.y_test, self.owner_test)
        if len(self.y_train) == 0:
            raise AtollError(f"Data set {self.name!r} has no training rows.")
        if self.x_test.shape[1:] != self.x_train.shape[1:]:
            raise AtollError(
                f"Data set {self.name!r}: test rows have shape {self.x_test.shape[1:]}, "
                f"training rows {self.x_train.shape[1:]}. Give both the same shape."
            )

    def __repr__(self) -> str:
        rows = f"{len(self.y_train)} rows to train, {len(self.y_test)} to test"
        return f"<Dataset {self.name}: {self.kind} rows of shape {self.shape}, {self.num_classes} classes, {rows}>"

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return tuple(self.x_train.shape[1:])

    def _check_part(self, part: str, x: Array, y: Array, owner: Array | None) -> None:
        where = f"Data set {self.name!r}, {part} part"
        if len(x) != len(y):
            raise AtollError(f"{where}: {len(x)} rows but {len(y)} labels. Give one label for each row.")
        if owner is not None and len(owner) != len(y):
            raise AtollError(f"{where}: {len(y)} rows but {len(owner)} owners. Give one owner for each row.")
        if len(y) and (y.min() < 0 or y.max() >= self.num_classes):
            raise AtollError(
                f"{where}: labels run from {y.min()} to {y.max()}, but there are {self.num_classes} classes. "
                f"Number them from 0 to {self.num_classes - 1}."
            )
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            row = int(np.argwhere(~np.isfinite(x.reshape(len(x), -1)).all(1))[0, 0])
            raise AtollError(f"{where}: row {row} contains NaN or infinity. Remove the row or fill the value.")
