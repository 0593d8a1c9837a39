"""Define a labelled data set before it is partitioned among clients."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.problems import Classes, NextToken, Numbers, Problem
from ..errors import AtollError
from .tables.columns import Bounds, Column

Array = NDArray[Any]  # the element type depends on the content, such as uint8 for images
Kind = Literal["image", "table", "text"]
RANGES = 10  # of numbers, for partitions and splits


@dataclass(frozen=True, repr=False)
class Dataset:
    """Training and test rows with labels.

    A data set without an official test part has empty test arrays. Rows may name their owners, such as hospitals.
    """

    name: str
    kind: Kind
    # image: uint8 [N, channels, H, W]; table: float32 [N, columns]; text: int64 token ids [N, length]; with columns,
    # raw rows as `data/tables/columns.py` describes them
    x_train: Array
    y_train: Array  # classes: int64 [N], 0 to C - 1; labels and numbers: float32 [N, T]; next token: int64 [N, length]
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]  # a name for every output of a model: classes, label or target columns, tokens
    owner_train: Array | None = None  # str [N]: the owner of each row, if the data name owners
    owner_test: Array | None = None
    problem: Problem = Classes(0)  # what the labels are; the number of classes follows from their names
    columns: tuple[Column, ...] = ()  # of rows that are prepared by statistics of training rows; none: used as they are
    target_bounds: tuple[Bounds | None, ...] = ()  # declared bounds of numbers to predict
    standardise_targets: bool = False  # whether a run gives targets that are numbers the unit of its training rows
    notes: tuple[str, ...] = ()  # what a reader inferred, left out or changed
    names_test_rows: bool = (
        False  # whether a table says which rows are for testing, so that the default split keeps them
    )
    split_by_time: bool = False  # whether the test part is later than the training part, so that no other split is fair
    open_classes: bool = False  # whether the names of classes are those of the rows, so that sites must agree on them

    def __post_init__(self) -> None:
        if isinstance(self.problem, Classes):
            object.__setattr__(self, "problem", Classes(len(self.classes)))
        self._check_part("train", self.x_train, self.y_train, self.owner_train)
        self._check_part("test", self.x_test, self.y_test, self.owner_test)
        if len(self.y_train) == 0:
            raise AtollError(f"Data set {self.name!r} has no training samples.")
        if self.x_test.shape[1:] != self.x_train.shape[1:]:
            raise AtollError(
                f"Data set {self.name!r}: test samples have shape {self.x_test.shape[1:]}, "
                f"training samples {self.x_train.shape[1:]}. Give both the same shape."
            )

    def __repr__(self) -> str:
        rows = f"{len(self.y_train)} samples to train, {len(self.y_test)} to test"
        return f"<Dataset {self.name}: {self.kind} samples of shape {self.shape}, {self._outputs()}, {rows}>"

    @property
    def num_classes(self) -> int:
        """Return the number of classes; 0 if labels are no classes."""
        return self.problem.num_classes

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups of rows that partitions and splits keep apart.

        Groups are the classes, or ranges of a single number with equally many training rows. Rows of other problems are
        one group.
        """
        if self.num_classes:
            return self.classes
        names = [f"up to {edge:.6g}" for edge in self._edges]
        return (*names, f"above {self._edges[-1]:.6g}") if names else ("all rows",)

    def group_numbers(self, y: Array) -> Array:
        """Return the number of the group of each row, given its labels."""
        if self.num_classes:
            return y
        return _ranges(y, self._edges)

    def own_groups(self, y: Array) -> tuple[Array, int]:
        """Return the group of each of a client's rows, and the number of groups, as the client knows them by itself.

        Groups are numbered from 0: the classes that the client has, or ranges of its own numbers.
        """
        if not self.num_classes:
            edges = self._range_edges(y)
            return _ranges(y, edges), len(edges) + 1
        present, groups = np.unique(y, return_inverse=True)
        return groups, len(present)

    @cached_property
    def _edges(self) -> Array:
        return self._range_edges(self.y_train)

    def _range_edges(self, y: Array) -> Array:
        """Return the upper ends of all ranges but the last; none where rows have no single number."""
        if not isinstance(self.problem, Numbers) or self.problem.count > 1:
            return np.empty(0)
        ends: Array = np.unique(np.quantile(y[:, 0], np.arange(1, RANGES) / RANGES))
        inner: Array = ends[ends < y.max()]
        return inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return tuple(self.x_train.shape[1:])

    def _outputs(self) -> str:
        return f"{self.num_classes} classes" if self.num_classes else f"{self.problem.labels} ({self.problem.outputs})"

    def _check_labels(self, where: str, x: Array, y: Array) -> None:
        """Raise an AtollError if labels do not have the form that the problem asks for."""
        outputs, problem = self.problem.outputs, self.problem
        if isinstance(problem, Classes | NextToken):
            if len(y) and y.dtype.kind not in "biu":
                raise AtollError(
                    f"{where}: labels are {y.dtype}, but {problem.labels} are whole numbers. Convert them, or give the "
                    "data set another problem, such as problem=Numbers()."
                )
            if len(y) and (y.min() < 0 or y.max() >= outputs):
                things = "classes" if self.num_classes else "tokens"
                raise AtollError(
                    f"{where}: labels run from {y.min()} to {y.max()}, but there are {outputs} {things}. "
                    f"Number them from 0 to {outputs - 1}."
                )
            shape = y.shape[:1] if self.num_classes else (len(x), problem.length)  # type: ignore[union-attr]
        else:
            shape = (len(y), outputs)
        if len(y) and y.shape != shape:
            raise AtollError(
                f"{where}: labels have shape {y.shape}, but --task {problem.task} with {outputs} outputs needs {shape}."
            )

    def _check_part(self, part: str, x: Array, y: Array, owner: Array | None) -> None:
        where = f"Data set {self.name!r}, {part} part"
        if len(x) != len(y):
            raise AtollError(f"{where}: {len(x)} samples but {len(y)} labels. Give one label for each sample.")
        if owner is not None and len(owner) != len(y):
            raise AtollError(f"{where}: {len(y)} samples but {len(owner)} owners. Give one owner for each sample.")
        self._check_labels(where, x, y)
        if not self.columns and np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            row = int(np.argwhere(~np.isfinite(x.reshape(len(x), -1)).all(1))[0, 0])
            raise AtollError(f"{where}: sample {row} contains NaN or infinity. Remove the sample or fill the value.")


def _ranges(y: Array, edges: Array) -> Array:
    """Return the number of the range of each row."""
    return np.searchsorted(edges, y[:, 0]) if len(edges) else np.zeros(len(y), dtype=np.int64)
