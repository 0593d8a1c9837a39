"""The gate: classes of which a client has too few rows stay at home, and so does everything that tells of them.

It runs where the client runs and goes by what an upload's fields declare (``about``): tables of classes, counts,
covariances. So it needs to know no method. What is not declared to go by class (weights, outputs for public rows)
passes unchanged. It prevents exact reconstruction from few rows; it is no differential privacy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import Client
from ..payload import Params
from ..validation import Marks, tensors_of

COV_SOURCES = ("client", "diag", "means", "none")

Declared = Mapping[str, Marks]  # of the tensors of an upload, by the names that they travel by


class Tally(NamedTuple):
    """What the gate had before it and what it kept back, summed over uploads."""

    classes: int = 0  # that clients hold
    withheld: int = 0
    rows: int = 0  # behind these classes
    rows_withheld: int = 0
    covariances: int = 0  # that would have left
    replaced: int = 0  # of those, by what ``cov_source`` says

    def plus(self, other: "Tally") -> "Tally":
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Gate:
    """Rows that a class needs to leave, and what stands in for a covariance of too few."""

    least: int = 0
    cov_source: str = "client"

    @property
    def on(self) -> bool:
        return self.least > 0 or self.cov_source != "client"

    def covariance_floor(self, width: int) -> int:
        """Below ``width`` + 1 rows a covariance gives away who is in it; twice as many, and at least ``least``."""
        return 0 if self.cov_source == "client" else max(self.least, 2 * (width + 1))

    def passed(self, upload: Any, counts: Tensor, declared: Declared) -> Any:
        """The upload without what too few rows are behind; ``counts`` [C] are the rows that the client really has."""
        tensors, open_classes = tensors_of(upload), counts >= self.least
        changed = dict(tensors)
        for name in class_tables(tensors, declared):
            changed[name] = _only(tensors[name], open_classes)
            if declared[name].psd:
                changed[name] = self._covariances(changed[name], counts)
        if any(declared[name].count for name in changed if name in declared and changed[name].ndim == 1):
            kept_back = counts[~open_classes].sum()
            for name in _totals(tensors, declared):  # or the rows kept back would be had by subtraction
                changed[name] = (tensors[name] - kept_back.to(tensors[name].dtype)).clamp(min=1)
        return with_tensors(upload, changed)

    def _covariances(self, sigma: Tensor, counts: Tensor) -> Tensor:
        few = counts < self.covariance_floor(sigma.shape[-1])
        diagonal = torch.diag_embed(sigma.diagonal(dim1=-2, dim2=-1))
        return torch.where(few[:, None, None], diagonal if self.cov_source == "diag" else 0, sigma)

    def tally(self, counts: Tensor, width: int | None) -> Tally:
        """What the gate does to an upload about such ``counts``; ``width`` is that of covariances, if any are in it."""
        held, few = counts > 0, (counts > 0) & (counts < self.least)
        leaving = held & ~few
        replaced = leaving & (counts < self.covariance_floor(width)) if width is not None else torch.zeros(0)
        return Tally(
            int(held.sum()),
            int(few.sum()),
            int(counts.sum()),
            int(counts[few].sum()),
            int(leaving.sum()) if width is not None else 0,
            int(replaced.sum()),
        )


def rows_of_classes(client: Client) -> Tensor:
    """How many rows of each class a client has [C]."""
    return client.members().sum(0)


def class_tables(tensors: Params, declared: Declared) -> Iterator[str]:
    """Tensors whose rows are classes: markers, what they mark, counts, and sums that go with counts."""
    markers = {marks.rows for marks in declared.values() if marks.rows}
    for name, value in tensors.items():
        marks = declared.get(name)
        by_class = marks is not None and (marks.rows or isinstance(marks.probabilities, str) or marks.count)
        if value.ndim and (by_class or name in markers):
            yield name


def _totals(tensors: Params, declared: Declared) -> list[str]:
    return [name for name, v in tensors.items() if v.ndim == 0 and name in declared and declared[name].count]


def _only(table: Tensor, kept: Tensor) -> Tensor:
    """The rows of classes that may leave; zeros, or False, in place of the others."""
    return torch.where(kept.reshape(-1, *[1] * (table.ndim - 1)), table, torch.zeros_like(table))


def with_tensors(upload: Any, tensors: Params) -> Any:
    """The payload with other tensors under the same names."""
    values: dict[str, Any] = {}
    for f in fields(upload):
        value = getattr(upload, f.name)
        if isinstance(value, dict):
            values[f.name] = {name: tensors[f"{f.name}/{name}"] for name in value}
        elif isinstance(value, Tensor):
            values[f.name] = tensors[f.name]
    return replace(upload, **values)
