"""The gate: classes of which a client has too few rows stay at home, and so does everything that tells of them.

It runs where the client runs and goes by what an upload's fields declare (``about``): tables of classes, counts,
covariances. So it needs to know no method. What is declared to be something else (models, outputs for public rows)
passes unchanged; what declares nothing does not leave. It prevents exact reconstruction from few rows; it is no
differential privacy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.client import Client
from ..core.payloads import Params, Role, field_types
from ..core.schema import FieldConstraints, constraints_at, tensors_of
from ..errors import AtollError

WHERE = "in about(...), or in the marks of a regulariser,"  # where an author declares roles
COV_SOURCES = ("client", "diag", "means", "none")

Declared = Mapping[str, FieldConstraints]  # of the tensors of an upload, by the names that they travel by


class Undeclared(AtollError):
    """A field of an upload that does not say what the gate has to know."""


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
class DisclosureControl:
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
        check_upload(upload, declared, len(counts))
        tensors, open_classes = tensors_of(upload), counts >= self.least
        changed = dict(tensors)
        for name in class_tables(tensors, declared):
            changed[name] = _only(tensors[name], open_classes)
            if constraints_at(name, declared).psd:
                changed[name] = self._covariances(changed[name], counts)
        kept_back = counts[~open_classes].sum()
        for name in totals(tensors, declared):
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
    """Yield the names of tensors whose rows are classes: tables, markers, counts, and sums that go with counts."""
    for name, value in tensors.items():
        if value.ndim and (constraints_at(name, declared).by_class or is_marker(name, declared)):
            yield name


def is_marker(name: str, declared: Declared) -> bool:
    """Return True if a tensor says which classes the rows of another one are of."""
    return any(marks.rows == name for marks in declared.values())


def totals(tensors: Params, declared: Declared) -> list[str]:
    """Return the names of numbers of all rows that travel beside counts by class.

    Rows of classes that stay at home are taken off such a number: the difference would tell how many there are.
    """
    counts = [name for name in tensors if constraints_at(name, declared).counts_rows]
    return [name for name in counts if not tensors[name].ndim] if any(tensors[name].ndim for name in counts) else []


# ---------------------------------------------------------------------------------------------------------------------
# What has to be declared


def check_upload(upload: Any, declared: Declared, classes: int) -> None:
    """Raise Undeclared if a tensor of an upload has no role, or one that does not go with its shape."""
    for name, value in tensors_of(upload).items():
        problem = _undeclared(name, declared, value, classes) or _misdeclared(name, declared, value, classes)
        if problem:
            raise Undeclared(f"The gate is on, and field {name} of {type(upload).__name__} {problem}")


def check_fields(kind: type[Any], declared: Declared) -> None:
    """Raise Undeclared if a tensor field of an upload class has no role, also one that is not in every upload."""
    for name, hint in field_types(kind).items():
        problem = _undeclared(name, declared) if hint in (Tensor, Tensor | None) else ""
        if problem:
            raise Undeclared(f"The gate is on, and field {name} of {kind.__name__} {problem}")


def _undeclared(name: str, declared: Declared, value: Tensor | None = None, classes: int = 0) -> str:
    marks = constraints_at(name, declared)
    if marks.role or marks.by_class or is_marker(name, declared):
        return ""
    if value is not None and value.ndim and len(value) == classes:
        return (
            f"has as many rows as there are classes and declares no role. Say {WHERE} role=Role.CLASS_TABLE, with "
            "rows=... if a field marks the classes held; role=Role.MODEL or Role.CHANGE if it belongs to a model; or "
            "role=Role.OTHER if its rows are no classes."
        )
    return f"declares no role. Say {WHERE} which it has: Role.{', Role.'.join(Role.__members__)}."


def _misdeclared(name: str, declared: Declared, value: Tensor, classes: int) -> str:
    marks = constraints_at(name, declared)
    if marks.role is Role.WEIGHT and value.ndim:
        return f"has role=Role.WEIGHT, which is for scalars, and shape {list(value.shape)}."
    by_class = marks.by_class or is_marker(name, declared)
    if value.ndim and by_class and len(value) != classes:
        return f"is declared to have a row for each class, and has {len(value)} rows for {classes} classes."
    return ""


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
