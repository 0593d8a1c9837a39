"""Describe the tensors of payloads: names, types, shapes, and the constraints that fields declare."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import AtollError
from .contract import contract
from .hooks import TakesRegularisers
from .payloads import Params, Payload, Role, field_types
from .tree import flatten_rows

if TYPE_CHECKING:
    from .method import AnyMethod


P = TypeVar("P", bound=Payload)


class UploadError(NamedTuple):
    """Name the field of an upload that cannot be used, and the reason."""

    field: str
    reason: str


class Leaf(NamedTuple):
    """Describe the type and shape of one tensor."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]  # None stands for the number of rows

    def __str__(self) -> str:
        sizes = ", ".join("rows" if size is None else str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"

    def nbytes(self, rows: int) -> int:
        """Return the size in bytes of a tensor for ``rows`` rows."""
        return self.dtype.itemsize * prod(rows if size is None else size for size in self.shape)


Form = dict[str, Leaf]  # names as in a packed payload; class tables are dense


@dataclass(frozen=True)
class FieldConstraints:
    """Hold what ``about`` declares of one tensor. Other fields are named as in a packed payload."""

    rows: str | None = None
    symmetric: bool = False
    count: bool = False
    probabilities: bool | str = False
    psd: bool = False
    factor: bool = False
    labels: bool = False
    role: Role | None = field(default=None, compare=False)  # A role is no constraint on values.
    of: str | None = field(default=None, compare=False)

    @property
    def by_class(self) -> bool:
        """Return True if the rows of a tensor (that is no scalar) are classes."""
        sums = isinstance(self.probabilities, str)
        return bool(self.rows) or sums or self.counts_rows or self.role is Role.CLASS_TABLE

    @property
    def covariance(self) -> bool:
        """Return True if a tensor holds covariances, whole or as factors."""
        return self.psd or self.factor

    @property
    def counts_rows(self) -> bool:
        """Return True if a tensor holds numbers of rows."""
        return self.count or self.role is Role.COUNT


_NO_CONSTRAINTS = FieldConstraints()


# ---------------------------------------------------------------------------------------------------------------------
# Forms


def tensors_of(p: Payload) -> Params:
    """Return all tensors of a payload, under the names of the packed form."""
    found: Params = {}
    for field_name in field_types(type(p)):
        value = getattr(p, field_name)
        if isinstance(value, dict):
            found |= {f"{field_name}/{name}": v for name, v in value.items()}
        elif isinstance(value, Tensor):
            found[field_name] = value
    return found


def replace_tensors(p: P, new: Params) -> P:
    """Return a copy of a payload with some tensors replaced, by their names in the packed form."""
    values: dict[str, object] = {}
    for f in fields(p):
        value = getattr(p, f.name)
        if isinstance(value, dict):
            values[f.name] = {name: new.get(f"{f.name}/{name}", v) for name, v in value.items()}
        elif f.name in new:
            values[f.name] = new[f.name]
    return replace(p, **values)


def static_form(p: Payload) -> tuple[Any, ...]:
    """Return the names of tensors and the values of scalars, which are equal in payloads that can be stacked."""
    values = [getattr(p, name) for name in field_types(type(p))]
    return tuple([tuple(v) if isinstance(v, dict) else ... if isinstance(v, Tensor) else v for v in values])


def form_of(p: Payload) -> Form:
    """Return the types and shapes of a payload's tensors, by name."""
    return {name: Leaf(v.dtype, tuple(v.shape)) for name, v in tensors_of(p).items()}


def is_finite(p: Payload) -> bool:
    """Return True if a payload holds neither NaN nor infinity."""
    return all(bool(v.isfinite().all()) for v in tensors_of(p).values())


def find_nonfinite(stack: Payload) -> set[int]:
    """Return the positions in a stack of payloads that hold NaN or infinity."""
    found = [flatten_rows(v.isfinite()).all(1).logical_not_() for v in tensors_of(stack).values()]
    return {at for flags in found if bool(flags.any()) for at in flags.nonzero().flatten().tolist()}


def declared_constraints(kind: type[Payload]) -> dict[str, FieldConstraints]:
    """Return the constraints that a payload class declares, by field, or by ``field/tensor`` for labels."""
    names = [constraint.name for constraint in fields(FieldConstraints) if constraint.name != "labels"]
    found = {
        f.name: FieldConstraints(**{name: f.metadata[name] for name in names if name in f.metadata})
        for f in fields(kind)
    }
    lists = {f.name: f.metadata.get("labels") for f in fields(kind)}
    return found | {f"{name}/{inner}": FieldConstraints(labels=True) for name, inner in lists.items() if inner}


def constraints_at(name: str, declared: Mapping[str, FieldConstraints]) -> FieldConstraints:
    """Return the constraints of one tensor. A tensor in a dictionary inherits the role of the dictionary's field."""
    own = declared.get(name, _NO_CONSTRAINTS)
    whole = declared.get(field_of(name), _NO_CONSTRAINTS)
    return own if own.role else replace(own, role=whole.role, of=whole.of)


def field_of(name: str) -> str:
    """Return the field of a payload that holds the tensor of this name."""
    return name.partition("/")[0]


def constraints_of(method: "AnyMethod") -> dict[str, FieldConstraints]:
    """Return the constraints of all tensors in a method's uploads, reports of regularisers included.

    Raises:
        AtollError: if uploads of two exchanges have a field of the same name with different declarations.
    """
    found: dict[str, FieldConstraints] = {}
    for messages in contract(method).exchanges:
        for name, own in declared_constraints(messages.upload).items():
            if (known := found.setdefault(name, own)) != own or known.role is not own.role:
                raise AtollError(
                    f"{messages.upload.__name__}.{name} of {type(method).__name__} is declared in two ways, in two "
                    "exchanges. Rename one of the fields."
                )
    return found | _report_constraints(method)


def _report_constraints(method: "AnyMethod") -> dict[str, FieldConstraints]:
    found = {}
    for term in method.terms() if isinstance(method, TakesRegularisers) else ():
        prefix = f"extra/{type(term).__name__}."
        for name, constraints in term.marks.items():
            by = constraints.get("probabilities", False)
            found[prefix + name] = FieldConstraints(
                **{**constraints, "probabilities": prefix + by if isinstance(by, str) else by}
            )
    return found
