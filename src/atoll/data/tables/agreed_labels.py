"""Give the rows of clients the class names and the unit of targets that clients agreed on."""

from collections.abc import Sequence
from dataclasses import replace
from json import loads

import numpy as np

from ...core.problems import Numbers
from ...errors import AtollError
from ..dataset import Dataset
from ..federated_dataset import FederatedDataset
from .labels import deviation
from .statistics import ColumnStatistics


class UnnamedClass(AtollError):
    """Raised for rows of a class that no client may name."""


def with_target_unit(federation: FederatedDataset, agreed: ColumnStatistics | None) -> FederatedDataset:
    """Return the federation with targets in the unit that clients agreed on, if labels are numbers.

    All clients have one unit, mean 0 and deviation 1 over the training rows of all of them, because scores are compared
    over clients.
    """
    if agreed is None or agreed.target_total is None:
        return federation
    return replace(federation, dataset=replace(federation.dataset, problem=target_unit(agreed)))


def with_class_names(federation: FederatedDataset, agreed: ColumnStatistics | None) -> FederatedDataset:
    """Return the federation with the classes of all clients, in their order.

    Raises:
        UnnamedClass: a row has a class that is not among the names.
    """
    names = () if agreed is None else class_names(agreed)
    return replace(federation, dataset=_with_classes(federation.dataset, names)) if names else federation


def class_names(agreed: ColumnStatistics) -> tuple[str, ...]:
    """Return the names of classes that clients agreed on; none if they had the same from the start."""
    return tuple(loads(agreed.class_names))


def target_unit(agreed: ColumnStatistics) -> Numbers:
    """Return the problem of targets in their common unit; in that of the files if too few rows may tell of them."""
    assert agreed.target_total is not None
    assert agreed.target_squares is not None
    sums = list(zip(agreed.target_total.tolist(), agreed.target_squares.tolist(), strict=True))
    count = agreed.target_rows
    if not count:
        return Numbers(len(sums))
    centre = tuple(total / count for total, _ in sums)
    return Numbers(len(sums), centre, tuple(deviation(total, squares, count) for total, squares in sums))


def _with_classes(data: Dataset, names: Sequence[str]) -> Dataset:
    """Return a data set whose labels are numbered by ``names``."""
    number = {name: at for at, name in enumerate(names)}
    for label in np.unique(np.concatenate([data.y_train, data.y_test])).tolist():
        if data.classes[label] not in number:
            raise UnnamedClass(
                f"{data.name!r} has samples of the class {data.classes[label]!r}, which no site has named: a name "
                "leaves a site only if enough samples there have it. List all classes at every site, such as "
                "'rows.csv?classes=a,b,c', or remove the samples."
            )
    table = np.array([number.get(name, -1) for name in data.classes], dtype=np.int64)
    return replace(data, classes=tuple(names), y_train=table[data.y_train], y_test=table[data.y_test])
