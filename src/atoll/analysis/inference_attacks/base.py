"""Define the input and the result of an attack, and read class statistics from uploads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from ...clients.tasks import ClientTask
from ...core.client import Client
from ...core.payloads import Params, Payload
from ...core.schema import constraints_at, constraints_of, tensors_of
from ...engine.setup import Setup
from ...privacy.disclosure import class_tables, count_by_class

UploadFilter = Callable[[ClientTask, Client, Payload], Payload]


class AttackResult(NamedTuple):
    """The success of one attack.

    Args:
        attack: name of the attack.
        measure: what the values mean.
        tried: number of attacked clients, classes or rows.
        found: mean success by name of the upload filter; None if there was nothing to attack.
        ranges: least and greatest success over several draws of the noise, by name of the upload filter.
    """

    attack: str
    measure: str
    tried: int
    found: dict[str, float | None]
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})


@dataclass(frozen=True)
class ObservedUpload:
    """An upload after the filter, and the client's private data that attacks are measured against."""

    task: ClientTask
    client: Client
    upload: Payload
    params: Params  # weights of the client's own model

    @property
    def counts(self) -> Tensor:
        """Return the number of the client's rows of each class."""
        return count_by_class(self.client)


class ClassStatistics(NamedTuple):
    """The class statistics in an upload; None for each one that the method does not send."""

    counts: Tensor | None  # rows of each class, [C]
    held: Tensor | None  # whether the client has rows of the class, bool [C]
    mean: Tensor | None  # mean features, [C, d]
    sigma: Tensor | None  # covariance of features, [C, d, d]

    def has(self, c: int) -> bool:
        """Return True if the upload contains the mean features of class ``c``."""
        return self.mean is not None and self.held is not None and bool(self.held[c])


def read_statistics(upload: Payload, setup: Setup) -> ClassStatistics:
    """Find the class statistics of an upload by the declarations of its fields."""
    declared, tensors = constraints_of(setup.method), tensors_of(upload)
    names = list(class_tables(tensors, declared))
    marks = {name: constraints_at(name, declared) for name in names}
    counts = [tensors[name] for name in names if marks[name].count]
    markers = [tensors[str(marks[name].rows)] for name in names if marks[name].rows]
    means = [
        tensors[name] for name in names if marks[name].rows and not marks[name].covariance and not marks[name].count
    ]
    wide = [m for m in means if m.ndim == 2 and m.shape[1] == setup.pool.task().feature_dim]
    sigma = [
        tensors[name] if marks[name].psd else tensors[name] @ tensors[name].mT
        for name in names
        if marks[name].covariance
    ]
    n = counts[0] if counts else None
    held = markers[0] != 0 if markers else n > 0 if n is not None else None
    return ClassStatistics(n, held, wide[0] if wide else None, sigma[0] if sigma else None)


def mean_result(attack: str, measure: str, values: Sequence[float]) -> AttackResult:
    """Return the mean of the values of one attack as a result."""
    return AttackResult(attack, measure, len(values), {"": sum(values) / len(values) if values else None})
