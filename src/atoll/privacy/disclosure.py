"""Remove classes with too few rows from uploads (disclosure control, called the gate in options and messages).

The gate runs at the client and reads the declared roles of an upload's fields (``about``): class tables, counts,
covariances. So the gate works for any method. Fields with other roles (models, outputs for public rows) pass unchanged;
a field without a role is refused. The gate prevents exact reconstruction from few rows; it is no differential privacy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core.client import Client
from ..core.payloads import Params, Payload, Role, field_types
from ..core.schema import FieldConstraints, constraints_at, replace_tensors, tensors_of
from ..errors import AtollError

WHERE = "in about(...), or in the marks of a regulariser,"  # where an author declares roles
COV_SOURCES = ("client", "diag", "means", "none")

P = TypeVar("P", bound=Payload)
Declared = Mapping[str, FieldConstraints]  # constraints of the tensors of an upload, by name


class Undeclared(AtollError):
    """A field of an upload declares no role, or one that does not fit its shape."""


class Tally(NamedTuple):
    """Counts of what the gate has seen and withheld, summed over uploads.

    Args:
        classes: classes that clients hold.
        withheld: classes that were withheld.
        rows: rows of the classes held.
        rows_withheld: rows of the classes withheld.
        covariances: covariances of the classes not withheld.
        replaced: covariances that were replaced as ``cov_source`` says.
    """

    classes: int = 0
    withheld: int = 0
    rows: int = 0
    rows_withheld: int = 0
    covariances: int = 0
    replaced: int = 0

    def plus(self, other: "Tally") -> "Tally":
        """Return the sum of two tallies."""
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class DisclosureControl:
    """Removes classes with too few rows from uploads, and replaces covariances of too few rows.

    Args:
        least: number of rows that a class needs; 0 removes no class.
        cov_source: one of ``COV_SOURCES``; ``client`` sends all covariances.
    """

    least: int = 0
    cov_source: str = "client"

    @property
    def on(self) -> bool:
        """Return True if the gate may change an upload."""
        return self.least > 0 or self.cov_source != "client"

    def covariance_floor(self, width: int) -> int:
        """Return the number of rows that a covariance needs: twice the ``width`` + 1 at which it has full rank."""
        return 0 if self.cov_source == "client" else max(self.least, 2 * (width + 1))

    def filter_upload(self, upload: P, counts: Tensor, declared: Declared) -> P:
        """Remove the classes with too few rows from an upload.

        Args:
            upload: the upload.
            counts: number of the client's rows of each class, of shape ``[C]``.
            declared: constraints of the upload's tensors.

        Raises:
            Undeclared: a tensor has no role.
        """
        check_upload(upload, declared, len(counts))
        tensors, open_classes = tensors_of(upload), counts >= self.least
        changed = dict(tensors)
        for name in class_tables(tensors, declared):
            changed[name] = _only(tensors[name], open_classes)
            if constraints_at(name, declared).covariance:
                changed[name] = self._covariances(changed[name], counts, constraints_at(name, declared).factor)
        withheld = counts[~open_classes].sum()
        for name in totals(tensors, declared):
            changed[name] = (tensors[name] - withheld.to(tensors[name].dtype)).clamp(min=1)
        return replace_tensors(upload, changed)

    def _covariances(self, sigma: Tensor, counts: Tensor, factor: bool) -> Tensor:
        few = counts < self.covariance_floor(sigma.shape[-2])
        instead = torch.zeros_like(sigma)  # A factor has no room for a diagonal.
        if self.cov_source == "diag" and not factor:
            instead = torch.diag_embed(sigma.diagonal(dim1=-2, dim2=-1))
        return torch.where(few[:, None, None], instead, sigma)

    def tally(self, counts: Tensor, width: int | None) -> Tally:
        """Count what the gate withholds from an upload.

        Args:
            counts: number of the client's rows of each class, of shape ``[C]``.
            width: width of covariances, or None if the upload has none.
        """
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


def count_by_class(client: Client) -> Tensor:
    """Return the number of a client's rows of each class, of shape ``[C]``."""
    return client.members().sum(0) if client.problem.num_classes else torch.zeros(0)


def class_tables(tensors: Params, declared: Declared) -> Iterator[str]:
    """Yield the names of tensors whose rows are classes: tables, markers, counts, and sums that go with counts."""
    for name, value in tensors.items():
        if value.ndim and (constraints_at(name, declared).by_class or is_marker(name, declared)):
            yield name


def is_marker(name: str, declared: Declared) -> bool:
    """Return True if a tensor marks the classes that another tensor holds."""
    return any(marks.rows == name for marks in declared.values())


def totals(tensors: Params, declared: Declared) -> list[str]:
    """Return the names of total row counts that are sent beside counts by class.

    Rows of withheld classes are subtracted from a total, because the difference would reveal their number.
    """
    counts = [name for name in tensors if constraints_at(name, declared).counts_rows]
    return [name for name in counts if not tensors[name].ndim] if any(tensors[name].ndim for name in counts) else []


# ---------------------------------------------------------------------------------------------------------------------
# Declared roles


def check_upload(upload: Payload, declared: Declared, classes: int) -> None:
    """Raise Undeclared if a tensor of an upload has no role, or one that does not go with its shape."""
    for name, value in tensors_of(upload).items():
        problem = _undeclared(name, declared, value, classes) or _misdeclared(name, declared, value, classes)
        if problem:
            raise Undeclared(f"The gate is on, and field {name} of {type(upload).__name__} {problem}")


def check_fields(kind: type[Payload], declared: Declared) -> None:
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
    """Set the rows of all other classes to zero or False."""
    return torch.where(kept.reshape(-1, *[1] * (table.ndim - 1)), table, torch.zeros_like(table))


def find_plain_scalars(upload: Payload) -> list[str]:
    """Return the fields of an upload that are plain numbers or words."""
    return [f.name for f in fields(upload) if isinstance(getattr(upload, f.name), int | float | str)]
