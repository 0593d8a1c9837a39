"""Define payloads: typed dataclasses of tensors, the only objects that are sent or stored in a checkpoint."""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from math import isqrt, prod
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform, get_type_hints

import torch
from torch import Tensor

from .torch_private import register_pytree_node

Params = dict[str, Tensor]
Scalar = int | float | bool | str
T = TypeVar("T")


class Payload(Protocol):
    """An object of a class made by :func:`payload`: an upload, a download, or a state of a client or the server."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_LEAVES = (Tensor, Tensor | None, Params)
_STATIC = (int, float, bool, str)
SIZE = "_nbytes"  # key in a payload's ``__dict__`` under which the size of the packed form is cached
_LABEL_BYTES = 4  # of the label of a class that is held
_MOST_CLASSES = 2**16  # A message that claims more classes is damaged; its tables would only fill memory.


class Role(Enum):
    """Classify a field of an upload. Differential privacy and the disclosure gate read roles, never names or shapes."""

    MODEL = "model"  # a model trained from the field of the download that has the same name, or the name in ``of``
    CHANGE = "change"  # the difference between a trained model and the one in the download
    WEIGHT = "weight"  # a scalar weight of the client in averages
    COUNT = "count"  # number of rows: a scalar, or one value for each class
    CLASS_TABLE = "class table"  # a table with a row for each class
    ACTIVATIONS = "activations"  # outputs or features of rows
    OTHER = "other"  # neither a model nor a value for each class


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
    factor: bool = False,
    labels: str | None = None,
) -> Any:
    """Declare a field of a payload: meaning, role, packed form, and constraints on values.

    Uploads that break a declared constraint are refused.

    Args:
        meaning: one phrase for the documentation.
        role: needed in uploads under ``--dp`` or with the disclosure gate on.
        of: the field of the download that a model or a change belongs to, if the name differs.
        rows: the field that marks the classes a client has, by a count or a flag. Rows of other classes are zero and
            are not sent.
        symmetric: the field holds symmetric matrices, which are sent as upper triangles.
        count: values are whole, at least 0 and at most the client's number of rows.
        probabilities: each row sums to 1.
        psd: matrices are positive semi-definite: covariances.
        factor: matrices F [d, r] stand for covariances F F^T.
        labels: name of the tensor in a dictionary field that holds class numbers.

    Returns:
        A dataclass field.

    Raises:
        TypeError: if ``of`` is given for a field that is neither a model nor a change.

    Example:
        >>> @payload
        ... class Up:
        ...     params: Params = about("trained weights", role=Role.MODEL)
    """
    if of is not None and role not in (Role.MODEL, Role.CHANGE):
        raise TypeError(f"of={of!r} is for role=Role.MODEL and role=Role.CHANGE, not for {role}. Remove of=.")
    constraints = {
        "symmetric": symmetric,
        "count": count,
        "probabilities": probabilities,
        "psd": psd,
        "factor": factor,
        "labels": labels,
    }
    return field(metadata={"about": meaning, "role": role, "of": of, "rows": rows, **constraints})


@dataclass_transform(frozen_default=True, field_specifiers=(about, field))
def payload(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass that is also a pytree.

    Tensors and dictionaries of tensors are leaves (vmap maps over them), Python scalars are static. Any other type of
    field is refused when the class is defined, so that a payload cannot carry a data set, a module or a closure.

    Raises:
        TypeError: if a field has another type or a default value, or if ``rows`` names no tensor field.
    """
    made: Any = dataclass(frozen=True, eq=False, repr=False)(cls)
    if "__repr__" not in vars(cls):
        made.__repr__ = _describe
    kinds = get_type_hints(made)
    for name, kind in kinds.items():
        if kind not in _LEAVES + _STATIC:
            raise TypeError(
                f"{made.__name__}.{name}: {kind} may not be sent. Use Tensor, Params, int, float, bool or str."
            )
        if hasattr(made, name):
            raise TypeError(
                f"{made.__name__}.{name} has a default value. Remove it, and give the value in the constructor."
            )
    _check_rows(made, kinds)
    static = tuple(name for name in kinds if kinds[name] in _STATIC)

    def flatten(p: Payload) -> tuple[list[Any], Any]:
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


def field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the declared types of a payload class's fields, by name."""
    kinds: dict[str, Any] = cls._kinds
    return kinds


def _describe(self: Any) -> str:
    """Return the shapes of a payload's fields: its numbers would fill pages."""
    shown = (f"{f.name}={_describe_value(getattr(self, f.name))}" for f in fields(self))
    return f"{type(self).__name__}({', '.join(shown)})"


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{list(value.shape)}"
    if isinstance(value, dict):
        numbers = sum(tensor.numel() for tensor in value.values())
        return f"{{{len(value)} tensor{'s' * (len(value) != 1)}, {numbers:,} number{'s' * (numbers != 1)}}}"
    return repr(value)


def _check_rows(cls: Any, kinds: dict[str, Any]) -> None:
    for f in fields(cls):
        marker = f.metadata.get("rows")
        if marker is not None and kinds.get(marker) is not Tensor:
            raise TypeError(f"{cls.__name__}.{f.name}: rows={marker!r} must name a Tensor field of the same payload.")


@payload
class Nothing:
    """An empty payload, for a message or a state without content."""


class Packed(NamedTuple):
    """The flat form of a payload that is sent, stored and counted. Names with ``#`` describe the packing itself."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors and scalars, without the description of the packing."""
        return sum(t.nbytes for t in self.tensors.values()) + sum(
            _scalar_bytes(v) for name, v in self.scalars.items() if "#" not in name
        )


def pack(p: Payload) -> Packed:
    """Flatten a payload to ``{"params/body.0.weight": tensor}`` and ``{"stage": "warm"}``.

    Rows of classes that the client does not have are left out.
    """
    packed = Packed({}, {})
    kind: Any = type(p)
    partial = {} if kind._dense else {f.name: f.metadata for f in fields(p)}  # fields that may be sent in part
    markers = {metadata["rows"] for metadata in partial.values() if metadata.get("rows")}
    for name in kind._kinds:
        value = getattr(p, name)
        if isinstance(value, dict):
            packed.tensors.update({f"{name}/{inner}": v for inner, v in value.items()})
        elif isinstance(value, Tensor):
            if name in markers:
                _pack_marker(packed, name, value)
            else:
                packed.tensors[name] = _pack_rows(value, p, partial[name]) if partial else value
        elif value is not None:
            packed.scalars[name] = value
    return packed


def _pack_marker(packed: Packed, name: str, marker: Tensor) -> None:
    """Add the labels of the classes held, unless all are, and the counts, unless the marker is a flag."""
    held = marker != 0
    packed.scalars[f"{name}#classes"] = len(marker)
    if not bool(held.all()):
        packed.tensors[f"{name}#held"] = held.nonzero().flatten().int()
    if marker.dtype != torch.bool:
        packed.tensors[name] = marker[held]


def _pack_rows(value: Tensor, p: Payload, metadata: Any) -> Tensor:
    if metadata.get("rows"):
        value = value[getattr(p, metadata["rows"]) != 0]
    if metadata.get("symmetric"):
        i, j = torch.triu_indices(value.shape[-1], value.shape[-1])
        value = value[..., i, j]
    return value


def unpack(cls: type[T], tensors: dict[str, Tensor], scalars: dict[str, Scalar], most: int = 2**62) -> T:
    """Rebuild a payload from the packed form; the inverse of :func:`pack`.

    Args:
        cls: the payload class.
        tensors: tensors of the packed form.
        scalars: scalars of the packed form.
        most: largest size of an unpacked table, in bytes.

    Raises:
        ValueError: if an entry is missing, surplus or malformed, or if a table would exceed ``most``.
    """
    left = set(tensors) | {name for name in scalars if "#" not in name}
    hints = field_types(cls)
    markers = {f.metadata["rows"] for f in fields(cls) if f.metadata.get("rows")}  # type: ignore[arg-type]
    held = {name: _unpack_held(name, tensors, scalars) for name in markers}
    left -= {f"{name}#held" for name in markers}
    values: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        kind = hints[f.name]
        if kind == Params:
            inside = {name for name in left if name.startswith(f.name + "/")}
            values[f.name] = {name[len(f.name) + 1 :]: v for name, v in tensors.items() if name in inside}
            left -= inside
            continue
        if f.name in left:
            left.remove(f.name)
        elif kind != Tensor | None and f.name not in markers:
            raise ValueError(f"{cls.__name__}.{f.name} is missing")
        if kind in _STATIC:
            values[f.name] = _check_scalar(cls, f.name, scalars.get(f.name), kind)
        elif f.name in markers:
            values[f.name] = _unpack_marker(tensors.get(f.name), held[f.name], most)
        else:
            values[f.name] = _unpack_rows(tensors.get(f.name), held.get(f.metadata.get("rows", "")), f.metadata, most)
    if left:
        raise ValueError(f"{cls.__name__} has no field for {', '.join(sorted(left))}")
    return cls(**values)


def _check_scalar(cls: Any, name: str, value: Any, kind: Any) -> Any:
    """Return a scalar of the declared type. A whole number is accepted for a float."""
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise ValueError(f"{cls.__name__}.{name} is {value!r}, not a {kind.__name__}")


def _unpack_held(name: str, tensors: dict[str, Tensor], scalars: dict[str, Scalar]) -> Tensor:
    """Return a flag for each class, True where a row was sent."""
    classes = scalars.get(f"{name}#classes")
    if type(classes) is not int or not 0 <= classes <= _MOST_CLASSES:
        raise ValueError(f"{name}#classes is missing or no number from 0 to {_MOST_CLASSES}")
    labels = tensors.get(f"{name}#held")
    if labels is None:
        return torch.ones(classes, dtype=torch.bool)
    held = torch.zeros(classes, dtype=torch.bool).index_fill(0, labels.long(), True)
    if not torch.equal(held.nonzero().flatten().int(), labels):
        raise ValueError(f"{name}#held must be class labels in ascending order")
    return held


def _unpack_marker(counts: Tensor | None, held: Tensor, most: int) -> Tensor:
    if counts is None:
        return held
    if counts.dtype == torch.bool or not bool((counts != 0).all()):
        raise ValueError("the count of a class that is held cannot be 0")
    return _scatter_rows(counts, held, most)


def _unpack_rows(value: Tensor | None, held: Tensor | None, metadata: Any, most: int) -> Tensor | None:
    if value is None:
        return None
    if metadata.get("symmetric"):
        value = _unfold_triangles(value, most)
    return value if held is None else _scatter_rows(value, held, most)


def _scatter_rows(rows: Tensor, held: Tensor, most: int) -> Tensor:
    """Return the dense table, zero for classes that are not held.

    The number of rows is checked first, because torch would broadcast a single row to all classes.
    """
    if len(rows) != int(held.sum()):
        raise ValueError(f"{len(rows)} rows for {int(held.sum())} classes")
    _check_room(rows, (len(held), *rows.shape[1:]), most)
    out = rows.new_zeros(len(held), *rows.shape[1:])
    out[held] = rows
    return out


def _unfold_triangles(value: Tensor, most: int) -> Tensor:
    d = (isqrt(8 * value.shape[-1] + 1) - 1) // 2
    if d * (d + 1) // 2 != value.shape[-1]:
        raise ValueError(f"{value.shape[-1]} numbers do not fill the upper triangle of a square matrix")
    _check_room(value, (*value.shape[:-1], d, d), most)
    out = value.new_zeros(*value.shape[:-1], d, d)
    if not value.numel():  # An empty tensor can claim any d: do not build d * d indices for it.
        return out
    i, j = torch.triu_indices(d, d)
    out[..., i, j] = value
    out[..., j, i] = value
    return out


def _check_room(like: Tensor, shape: Sequence[int], most: int) -> None:
    """Refuse a table of more than ``most`` bytes before memory is taken. Sides of 0 count as 1."""
    if prod(max(side, 1) for side in shape) * like.element_size() > most:
        raise ValueError(f"a table of shape {list(shape)} takes more than {most} bytes")


def nbytes(p: Payload) -> int:
    """Return the size of a payload's packed form in bytes, counted from shapes, without packing."""
    kind: Any = type(p)
    if not kind._dense:
        return _count_packed(p)
    if SIZE in p.__dict__:
        return int(p.__dict__[SIZE])
    total = 0
    for name in kind._kinds:
        value = getattr(p, name)
        if isinstance(value, dict):
            total += sum([v.nbytes for v in value.values()])
        elif value is not None:
            total += value.nbytes if isinstance(value, Tensor) else _scalar_bytes(value)
    return total


def _count_packed(p: Payload) -> int:
    """Return the bytes of ``pack(p)`` for a payload whose fields are sent in part."""
    markers = {f.metadata["rows"] for f in fields(p) if f.metadata.get("rows")}
    held = {name: int((getattr(p, name) != 0).sum()) for name in markers}
    total = 0
    for f in fields(p):
        value = getattr(p, f.name)
        if isinstance(value, dict):
            total += sum(v.nbytes for v in value.values())
        elif f.name in markers:
            labels = 0 if held[f.name] == len(value) else _LABEL_BYTES
            total += held[f.name] * (labels + (0 if value.dtype == torch.bool else value.element_size()))
        elif isinstance(value, Tensor):
            total += _count_rows(value, held.get(f.metadata.get("rows") or ""), f.metadata.get("symmetric", False))
        elif value is not None:
            total += _scalar_bytes(value)
    return total


def _count_rows(value: Tensor, held: int | None, symmetric: bool) -> int:
    """Return the bytes of a table of which ``held`` rows are sent; None for all."""
    shape = list(value.shape) if held is None else [held, *value.shape[1:]]
    if symmetric:
        shape[-2:] = [shape[-1] * (shape[-1] + 1) // 2]
    return prod(shape) * value.element_size()


def _scalar_bytes(value: Scalar) -> int:
    return len(value.encode()) if isinstance(value, str) else 8


def equal(a: Payload, b: Payload) -> bool:
    """Return True if two payloads have the same class, names in the same order, and equal values."""
    p, q = pack(a), pack(b)
    return (
        type(a) is type(b)
        and p.scalars == q.scalars
        and list(p.tensors) == list(q.tensors)
        and all(torch.equal(t, q.tensors[name]) for name, t in p.tensors.items())
    )
