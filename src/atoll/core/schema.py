"""The tensors of a payload, and the constraints that its fields declare."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .method import contract
from .payloads import Params, Role, kinds_of
from .tree import as_rows

if TYPE_CHECKING:
    from .method import AnyMethod


class UploadError(NamedTuple):
    """Why an upload cannot be used."""

    field: str
    reason: str


class Leaf(NamedTuple):
    """The form of one tensor."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]  # None: as many as there are rows

    def __str__(self) -> str:
        sizes = ", ".join("rows" if size is None else str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"

    def nbytes(self, rows: int) -> int:
        return self.dtype.itemsize * prod(rows if size is None else size for size in self.shape)


Form = dict[str, Leaf]  # names as in a packed payload; tables of classes are dense, whichever classes are held


@dataclass(frozen=True)
class FieldConstraints:
    """What ``about`` says of a tensor; fields are named as in a packed payload."""

    rows: str | None = None
    symmetric: bool = False
    count: bool = False
    probabilities: bool | str = False
    psd: bool = False
    labels: bool = False
    role: Role | None = field(default=None, compare=False)  # roles promise nothing that values are checked against
    of: str | None = field(default=None, compare=False)

    @property
    def by_class(self) -> bool:
        """Return True if the rows of a tensor, where that is no scalar, are classes."""
        sums = isinstance(self.probabilities, str)
        return bool(self.rows) or sums or self.of_rows or self.role is Role.CLASS_TABLE

    @property
    def of_rows(self) -> bool:
        """Return True if a tensor counts rows."""
        return self.count or self.role is Role.COUNT


_NO_CONSTRAINTS = FieldConstraints()


# ---------------------------------------------------------------------------------------------------------------------
# Forms


def tensors_of(p: Any) -> Params:
    """All tensors of a payload, under the names that they travel by."""
    found: Params = {}
    for place in kinds_of(type(p)):
        value = getattr(p, place)
        if isinstance(value, dict):
            found |= {f"{place}/{name}": v for name, v in value.items()}
        elif isinstance(value, Tensor):
            found[place] = value
    return found


def static_form(p: Any) -> tuple[Any, ...]:
    """Return what payloads of one class have in common if they can be stacked: names of tensors, values of scalars."""
    values = [getattr(p, name) for name in kinds_of(type(p))]
    return tuple([tuple(v) if isinstance(v, dict) else ... if isinstance(v, Tensor) else v for v in values])


def form_of(p: Any) -> Form:
    return {name: Leaf(v.dtype, tuple(v.shape)) for name, v in tensors_of(p).items()}


def is_finite(p: Any) -> bool:
    """Whether a payload holds neither NaN nor infinity."""
    return all(bool(v.isfinite().all()) for v in tensors_of(p).values())


def not_finite(stack: Any) -> set[int]:
    """The places in a stack of payloads at which there is NaN or infinity."""
    found = [as_rows(v.isfinite()).all(1).logical_not_() for v in tensors_of(stack).values()]
    return {at for flags in found if bool(flags.any()) for at in flags.nonzero().flatten().tolist()}


def declared_constraints(kind: type[Any]) -> dict[str, FieldConstraints]:
    """What the fields of a payload class declare."""
    names = [mark.name for mark in fields(FieldConstraints) if mark.name != "labels"]
    found = {
        f.name: FieldConstraints(**{name: f.metadata[name] for name in names if name in f.metadata})
        for f in fields(kind)
    }
    lists = {f.name: f.metadata.get("labels") for f in fields(kind)}
    return found | {f"{name}/{inner}": FieldConstraints(labels=True) for name, inner in lists.items() if inner}


def constraints_at(name: str, declared: Mapping[str, FieldConstraints]) -> FieldConstraints:
    """Return what is declared of one tensor; a tensor in a dictionary has the role of the dictionary's field."""
    own, whole = declared.get(name, _NO_CONSTRAINTS), declared.get(field_of(name), _NO_CONSTRAINTS)
    return own if own.role else replace(own, role=whole.role, of=whole.of)


def field_of(name: str) -> str:
    """Return the field of a payload that a tensor travels in."""
    return name.partition("/")[0]


def constraints_of(method: "AnyMethod") -> dict[str, FieldConstraints]:
    """What the tensors of a method's uploads declare, its regularisers' included."""
    return declared_constraints(contract(method).upload) | _reported(method)


def _reported(method: "AnyMethod") -> dict[str, FieldConstraints]:
    """What a method's regularisers declare of their reports."""
    found = {}
    for term in method.terms() if hasattr(method, "terms") else ():
        place = f"extra/{type(term).__name__}."
        for name, constraints in getattr(term, "marks", {}).items():
            by = constraints.get("probabilities", False)
            found[place + name] = FieldConstraints(
                **constraints | {"probabilities": place + by if isinstance(by, str) else by}
            )
    return found
