"""Typed payloads: the only things that may cross the network or enter a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from math import isqrt, prod
from typing import Any, NamedTuple, TypeVar, dataclass_transform, get_type_hints

import torch
from torch import Tensor

from .torch_private import register_pytree_node

Params = dict[str, Tensor]
Scalar = int | float | bool | str
T = TypeVar("T")

_LEAVES = (Tensor, Tensor | None, Params)
_STATIC = (int, float, bool, str)
SIZE = "_nbytes"  # entry of a payload's dictionary for the bytes of its packed form, if these are known already
_MOST_CLASSES = 2**16  # a larger number in a message is damage, not a federation, and would only fill memory


class Role(Enum):
    """Say what a field of an upload is for: differential privacy and the gate go by roles, never by names or shapes."""

    MODEL = "model"  # a trained form of the model in a field of the download: that of the same name, or that of ``of``
    CHANGE = "change"  # a difference to such a model
    WEIGHT = "weight"  # a scalar by which the server weighs the client
    COUNT = "count"  # numbers of rows: a scalar, or one for each class
    CLASS_TABLE = "class table"  # a row for each class
    ACTIVATIONS = "activations"  # outputs or features of rows
    OTHER = "other"  # neither a model nor by class


def about(
    meaning: str,
    *,
    role: Role | None = None,
    of: str | None = None,
    rows: str | None = None,
    symmetric: bool = False,
    count: bool = False,
    probabilities: bool = False,
    psd: bool = False,
    labels: str | None = None,
) -> Any:
    """Say what a field means, what it is for, how its class table travels, and what its values promise.

    ``role`` is needed in uploads under ``--dp`` or with the gate on. ``of`` names the field of the download that a
    model or a change belongs to, if that has another name.
    ``rows`` names the field that marks the classes held (a count, or a flag): the other rows are zero and stay at home.
    ``symmetric`` matrices travel as upper triangles. The other marks are checked in uploads: a ``count`` of rows is
    whole, at least 0 and at most what the client has; rows of ``probabilities`` sum to 1; a matrix that is ``psd`` is
    positive semi-definite; the tensor called ``labels`` in a dictionary holds numbers of classes.
    """
    if of is not None and role not in (Role.MODEL, Role.CHANGE):
        raise TypeError(f"of={of!r} is for role=Role.MODEL and role=Role.CHANGE, not for {role}.")
    marks = {"symmetric": symmetric, "count": count, "probabilities": probabilities, "psd": psd, "labels": labels}
    return field(metadata={"about": meaning, "role": role, "of": of, "rows": rows, **marks})


@dataclass_transform(frozen_default=True, field_specifiers=(about, field))
def payload(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass that is also a pytree.

    Tensors and dictionaries of tensors are leaves (vmap maps over them), Python scalars are static. Any other type of
    field is refused when the class is defined: a payload cannot carry a data set, a module or a closure out.
    """
    made: Any = dataclass(frozen=True, eq=False)(cls)
    kinds = get_type_hints(made)
    for name, kind in kinds.items():
        if kind not in _LEAVES + _STATIC:
            raise TypeError(f"{made.__name__}.{name}: {kind} may not be sent. Use Tensor, Params, or a plain scalar.")
        if hasattr(made, name):
            raise TypeError(f"{made.__name__}.{name} has a default value. Give values when a payload is made.")
    _check_rows(made, kinds)
    static = tuple(name for name in kinds if kinds[name] in _STATIC)

    def flatten(p: Any) -> tuple[list[Any], Any]:
        present = tuple(name for name in kinds if name not in static and getattr(p, name) is not None)
        return [getattr(p, name) for name in present], (present, tuple(getattr(p, name) for name in static))

    def unflatten(values: Any, context: Any) -> Any:
        absent = {name: None for name in kinds if kinds[name] == Tensor | None}
        given = dict(zip(context[0], values, strict=True)) | dict(zip(static, context[1], strict=True))
        return made(**absent | given)

    register_pytree_node(made, flatten, unflatten)
    made._kinds = kinds
    made._dense = not any(f.metadata.get("rows") or f.metadata.get("symmetric") for f in fields(made))
    return made  # type: ignore[no-any-return]


def kinds_of(cls: type[Any]) -> dict[str, Any]:
    """The declared types of a payload's fields, worked out when it was defined."""
    kinds: dict[str, Any] = cls._kinds
    return kinds


def _check_rows(cls: Any, kinds: dict[str, Any]) -> None:
    for f in fields(cls):
        marker = f.metadata.get("rows")
        if marker is not None and kinds.get(marker) is not Tensor:
            raise TypeError(f"{cls.__name__}.{f.name}: rows={marker!r} must name a Tensor field of the same payload.")


@payload
class Nothing:
    """What a client or a server keeps, or sends, when it has nothing to."""


class Packed(NamedTuple):
    """The flat form of a payload: what is sent, stored and counted. Scalars with ``#`` describe the form itself."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values()) + sum(
            _scalar_bytes(v) for name, v in self.scalars.items() if "#" not in name
        )


def pack(p: Any) -> Packed:
    """Flatten a payload to ``{"params/body.0.weight": tensor}`` and ``{"stage": "warm"}``, without absent classes."""
    packed = Packed({}, {})
    markers = {f.metadata["rows"] for f in fields(p) if f.metadata.get("rows")}
    for f in fields(p):
        value = getattr(p, f.name)
        if isinstance(value, dict):
            packed.tensors.update({f"{f.name}/{name}": v for name, v in value.items()})
        elif isinstance(value, Tensor):
            if f.name in markers:
                _pack_marker(packed, f.name, value)
            else:
                packed.tensors[f.name] = _pack_rows(value, p, f.metadata)
        elif value is not None:
            packed.scalars[f.name] = value
    return packed


def _pack_marker(packed: Packed, name: str, marker: Tensor) -> None:
    """Labels of the classes held, unless all are; and their counts, unless the marker is only a flag."""
    held = marker != 0
    packed.scalars[f"{name}#classes"] = len(marker)
    if not bool(held.all()):
        packed.tensors[f"{name}#held"] = held.nonzero().flatten().int()
    if marker.dtype != torch.bool:
        packed.tensors[name] = marker[held]


def _pack_rows(value: Tensor, p: Any, how: Any) -> Tensor:
    if how.get("rows"):
        value = value[getattr(p, how["rows"]) != 0]
    if how.get("symmetric"):
        i, j = torch.triu_indices(value.shape[-1], value.shape[-1])
        value = value[..., i, j]
    return value


def unpack(cls: type[T], tensors: dict[str, Tensor], scalars: dict[str, Scalar], most: int = 2**62) -> T:
    """Inverse of :func:`pack`; a missing or surplus entry is a ValueError, and so is a table of over ``most`` bytes."""
    left, hints = set(tensors) | {name for name in scalars if "#" not in name}, kinds_of(cls)
    markers = {f.metadata["rows"] for f in fields(cls) if f.metadata.get("rows")}  # type: ignore[arg-type]
    held = {name: _held(name, tensors, scalars) for name in markers}
    left -= {f"{name}#held" for name in markers}
    values: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        kind = hints[f.name]
        if kind == Params:
            mine = {name for name in left if name.startswith(f.name + "/")}
            values[f.name] = {name[len(f.name) + 1 :]: v for name, v in tensors.items() if name in mine}
            left -= mine
            continue
        if f.name in left:
            left.remove(f.name)
        elif kind != Tensor | None and f.name not in markers:
            raise ValueError(f"{cls.__name__}.{f.name} is missing")
        if kind in _STATIC:
            values[f.name] = _checked(cls, f.name, scalars.get(f.name), kind)
        elif f.name in markers:
            values[f.name] = _unpack_marker(tensors.get(f.name), held[f.name], most)
        else:
            values[f.name] = _unpack_rows(tensors.get(f.name), held.get(f.metadata.get("rows", "")), f.metadata, most)
    if left:
        raise ValueError(f"{cls.__name__} has no field for {', '.join(sorted(left))}")
    return cls(**values)


def _checked(cls: Any, name: str, value: Any, kind: Any) -> Any:
    """A scalar of the declared type; a whole number will do for a float."""
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise ValueError(f"{cls.__name__}.{name} is {value!r}, not a {kind.__name__}")


def _held(name: str, tensors: dict[str, Tensor], scalars: dict[str, Scalar]) -> Tensor:
    classes = scalars.get(f"{name}#classes")
    if type(classes) is not int or not 0 <= classes <= _MOST_CLASSES:
        raise ValueError(f"{name}#classes is missing or not a number of classes")
    labels = tensors.get(f"{name}#held")
    if labels is None:
        return torch.ones(classes, dtype=torch.bool)
    held = torch.zeros(classes, dtype=torch.bool).index_fill(0, labels.long(), True)
    if not torch.equal(held.nonzero().flatten().int(), labels):
        raise ValueError(f"{name}#held must be rising labels")
    return held


def _unpack_marker(counts: Tensor | None, held: Tensor, most: int) -> Tensor:
    if counts is None:
        return held
    if counts.dtype == torch.bool or not bool((counts != 0).all()):
        raise ValueError("the count of a class that is held cannot be 0")
    return _scattered(counts, held, most)


def _unpack_rows(value: Tensor | None, held: Tensor | None, how: Any, most: int) -> Tensor | None:
    if value is None:
        return None
    if how.get("symmetric"):
        value = _unfold_triangles(value, most)
    return value if held is None else _scattered(value, held, most)


def _scattered(rows: Tensor, held: Tensor, most: int) -> Tensor:
    """The dense table of the rows of the classes held; torch itself would spread one row over all of them."""
    if len(rows) != int(held.sum()):
        raise ValueError(f"{len(rows)} rows for {int(held.sum())} classes")
    _check_room(rows, (len(held), *rows.shape[1:]), most)
    out = rows.new_zeros(len(held), *rows.shape[1:])
    out[held] = rows
    return out


def _unfold_triangles(value: Tensor, most: int) -> Tensor:
    d = (isqrt(8 * value.shape[-1] + 1) - 1) // 2
    if d * (d + 1) // 2 != value.shape[-1]:
        raise ValueError(f"{value.shape[-1]} numbers are no triangle")
    _check_room(value, (*value.shape[:-1], d, d), most)
    out = value.new_zeros(*value.shape[:-1], d, d)
    if not value.numel():  # then d is nothing but a claim, and nobody should count up to its square
        return out
    i, j = torch.triu_indices(d, d)
    out[..., i, j] = value
    out[..., j, i] = value
    return out


def _check_room(like: Tensor, shape: Sequence[int], most: int) -> None:
    """A few bytes can claim a table of any size; an empty one is measured as if it were not."""
    if prod(max(side, 1) for side in shape) * like.element_size() > most:
        raise ValueError(f"a table of shape {list(shape)} takes more than {most} bytes")


def nbytes(p: Any) -> int:
    """Return the bytes of the packed form, without making it where nothing is left out of it."""
    if not p._dense:
        return pack(p).nbytes
    if SIZE in p.__dict__:
        return int(p.__dict__[SIZE])
    total = 0
    for name in p._kinds:
        value = getattr(p, name)
        if isinstance(value, dict):
            total += sum([v.nbytes for v in value.values()])
        elif value is not None:
            total += value.nbytes if isinstance(value, Tensor) else _scalar_bytes(value)
    return total


def _scalar_bytes(value: Scalar) -> int:
    return len(value.encode()) if isinstance(value, str) else 8


def equal(a: Any, b: Any) -> bool:
    """Same type, same fields in the same order, every tensor bit for bit."""
    p, q = pack(a), pack(b)
    return (
        type(a) is type(b)
        and p.scalars == q.scalars
        and list(p.tensors) == list(q.tensors)
        and all(torch.equal(t, q.tensors[name]) for name, t in p.tensors.items())
    )
