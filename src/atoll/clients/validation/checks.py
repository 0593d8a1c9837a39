"""Check one property of an upload at a time: types, sizes, shapes, values, declared constraints."""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.payloads import Params, Payload, field_types
from ...core.schema import FieldConstraints, Form, Leaf, UploadError, declared_constraints, tensors_of
from ...core.serialization import SENDABLE, Unreadable
from ...core.tree import flatten_rows
from .constraints import ValueLimits, broken_constraints
from .expected import Expected


def find_type_error(upload: Any, kind: type[Payload]) -> UploadError | None:
    """Check an upload against its payload class alone: types of fields, finite values, declared constraints.

    Args:
        upload: the upload.
        kind: the payload class that the method declares.

    Returns:
        The first error, or None.
    """
    return next(chain(_by_type(upload, kind), _by_value(upload, declared_constraints(kind), ValueLimits())), None)


def find_form_error(value: object, kind: type[Payload]) -> UploadError | None:
    """Check that an upload or a state is of its class and holds only plain tensors and numbers, whatever their values.

    Such a payload can be serialised, sent to another process and computed with.

    Args:
        value: what a client's code returned.
        kind: the payload class that the method declares.

    Returns:
        The first error, or None.
    """
    return next(_by_fields(value, kind), None)


def _by_form(tensors: Params, expected: Expected, rows: int) -> Iterator[UploadError]:
    fixed = {name: v for name, v in tensors.items() if not name.startswith(expected.open)}
    form = {name: leaf for name, leaf in expected.form.items() if not name.startswith(expected.open)}
    yield from _by_names(list(fixed), list(form))
    yield from _by_shapes(fixed, form, rows)
    kinds = {leaf.dtype for name, leaf in expected.form.items() if name not in form}
    for name, v in tensors.items():
        if name not in fixed and v.dtype not in kinds:
            yield UploadError(name, f"is {v.dtype}, which is none of the types expected")


def _by_names(found: list[str], expected: list[str]) -> Iterator[UploadError]:
    """Require the expected names in the expected order, which is the order of sums over a model."""
    for name in expected:
        if name not in found:
            yield UploadError(name, "is missing")
    for name in found:
        if name not in expected:
            yield UploadError(name, "is not expected")
    for name, other in zip(found, expected, strict=True):
        if name != other:
            yield UploadError(name, f"comes where {other} is expected")


def _by_shapes(tensors: Params, form: Form, rows: int) -> Iterator[UploadError]:
    """Require the expected shapes. All dimensions of rows have one size, at most the number of the client's rows."""
    common: int | None = None
    for name, leaf in form.items():
        v = tensors[name]
        if v.dtype != leaf.dtype or v.ndim != len(leaf.shape):
            yield UploadError(name, f"is {Leaf(v.dtype, tuple(v.shape))}, not {leaf}")
        for size, wanted in zip(v.shape, leaf.shape, strict=True):
            if wanted is None:
                wanted = common = size if common is None else common
            if size != wanted or (common or 0) > rows:
                yield UploadError(
                    name, f"is {Leaf(v.dtype, tuple(v.shape))}, not {leaf} of a client with {rows} samples"
                )


# ---------------------------------------------------------------------------------------------------------------------
# Types, sizes, values


def _by_type(upload: object, kind: type[Payload]) -> Iterator[UploadError]:
    """Require the declared class, the declared type in each field, and finite numbers."""
    yield from _by_fields(upload, kind)
    for name in field_types(kind):
        if isinstance(value := getattr(upload, name, None), float) and not isfinite(value):
            yield UploadError(name, "is NaN or infinite")


def _by_fields(upload: object, kind: type[Payload]) -> Iterator[UploadError]:
    if isinstance(upload, Unreadable):
        yield UploadError(upload.field, upload.reason)
    if type(upload) is not kind:
        yield UploadError("payload", f"is a {type(upload).__name__}, not a {kind.__name__}")
    for name, declared in field_types(kind).items():
        value = getattr(upload, name, None)
        if declared == Params:
            if type(value) is not dict or not all(type(n) is str and _plain(v) for n, v in value.items()):
                yield UploadError(name, "is not a dictionary of named tensors")
        elif declared in (Tensor, Tensor | None):
            if not _plain(value) and (value is not None or declared is Tensor):
                yield UploadError(name, f"is {_describe(value)}, not a plain tensor")
        elif type(value) is not declared and not (declared is float and type(value) is int):
            yield UploadError(name, f"is {_describe(value)}, not a {declared.__name__}")


def _plain(value: Any) -> bool:
    """Return True for a dense tensor with memory of its own, of a type that can be sent.

    Subclasses of tensors are not plain: code of theirs would run in each operation.
    """
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_nested)
        and value.dtype in SENDABLE  # quantised and complex types are not
    )


def _describe(value: Any) -> str:
    if type(value) is Tensor:
        layout = "nested" if value.is_nested else "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        return f"a tensor ({layout}, {str(value.dtype).removeprefix('torch.')})"
    return "None" if value is None else f"a {type(value).__name__}"


def _by_size(upload: Payload, most: int) -> Iterator[UploadError]:
    size = sum(v.numel() * v.element_size() for v in tensors_of(upload).values())
    if size > most:
        yield UploadError("payload", f"has {size} bytes, and {most} are the most that can be expected")


def _by_norm(tensors: Params, most: float) -> Iterator[UploadError]:
    norm = sum(float(v.double().square().sum()) for v in tensors.values() if v.is_floating_point()) ** 0.5
    if norm > most:
        yield UploadError("payload", f"has norm {norm:.4g}, above the limit of {most:g}")


def _by_value(
    upload: Payload, constraints: Mapping[str, FieldConstraints], bounds: ValueLimits
) -> Iterator[UploadError]:
    """Require finite values of a plausible size, then the declared constraints."""
    tensors = tensors_of(upload)
    for name, v in tensors.items():
        for reason in _implausible(v, bounds.largest):
            yield UploadError(name, reason)
    yield from _by_constraints(upload, constraints, bounds)


def _by_constraints(
    upload: Payload, constraints: Mapping[str, FieldConstraints], bounds: ValueLimits
) -> Iterator[UploadError]:
    tensors = tensors_of(upload)
    for name, v in tensors.items():
        if name in constraints:
            for reason in broken_constraints(v, constraints[name], tensors, bounds):
                yield UploadError(name, reason)


def _implausible(v: Tensor, most: float) -> Iterator[str]:
    """Check the extreme values, which are NaN if any value is; this allocates no tensor of the size of ``v``."""
    if not v.is_floating_point() or not v.numel():
        return
    low, high = (float(extreme) for extreme in v.aminmax())
    largest = max(-low, high)
    if not isfinite(largest):
        yield "holds NaN or infinity"
    if largest > most:
        yield f"holds a number of size {largest:.4g}, above the limit of {most:.4g}"
    if 0 < largest < torch.finfo(v.dtype).tiny:
        yield "holds only numbers that are subnormal, which slow arithmetic down and carry nothing"


def _all_plausible(stack: Params, most: float) -> bool:
    """Return True if ``_implausible`` finds nothing in any tensor of a stack."""
    numbers = [flatten_rows(v) for v in stack.values() if v.is_floating_point() and v.numel()]
    if not numbers:
        return True
    if not all(abs(float(extreme)) <= most for v in numbers for extreme in v.aminmax()):  # False for NaN
        return False
    first, tiny = torch.cat([v[:, 0] for v in numbers]), max(torch.finfo(v.dtype).tiny for v in numbers)
    # One normal number per client is enough, and the first number nearly always is one.
    return bool((first.abs() >= tiny).all()) or not any(_has_subnormal_row(v) for v in numbers)


def _has_subnormal_row(rows: Tensor) -> bool:
    """Return True if some row is not all 0 and holds only subnormal numbers and zeros."""
    largest = rows.abs().amax(1)
    return bool(((largest > 0) & (largest < torch.finfo(rows.dtype).tiny)).any())


def _all_counts(v: Tensor, most: NDArray[np.int64]) -> bool:
    """Return True if each tensor of a stack holds counts with a total of at most ``most`` rows of its client."""
    counts = flatten_rows(v).double().cpu().numpy()
    if ((counts != np.floor(counts)) | (counts < 0)).any():
        return False
    totals = counts.sum(1)
    return bool((totals <= most).all() and (v.ndim > 1 or ((totals > 0) | (most == 0)).all()))
