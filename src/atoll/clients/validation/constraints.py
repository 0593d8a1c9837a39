"""Find values of an upload that break what its fields declare: counts, labels, covariances, probabilities."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.payloads import Params
from ...core.schema import FieldConstraints

TOLERANCE = 1e-4  # relative; rounding in single precision and long sums stays below
SUM_TOLERANCE = 1e-3  # of probabilities
FEW = 16  # columns that are tried before a matrix is factorised as a whole
LARGEST = 1e15  # of any value: its square fits single precision, so that no sum of squares overflows


class ValueLimits(NamedTuple):
    """Limits for the values of an upload.

    Args:
        rows: number of rows of the sender, or None if unknown.
        classes: number of classes, or None if unknown.
        largest: largest absolute value.
    """

    rows: int | None = None
    classes: int | None = None
    largest: float = LARGEST


def broken_constraints(v: Tensor, constraints: FieldConstraints, tensors: Params, bounds: ValueLimits) -> Iterator[str]:
    """Yield the reasons for which a tensor breaks its declared constraints."""
    if constraints.count:
        yield from _not_counts(v, bounds.rows)
    if constraints.labels:
        yield from _not_labels(v, bounds.classes)
    held = None
    if constraints.rows is not None:
        held = tensors[constraints.rows] != 0
        if v.shape[:1] != held.shape:
            yield f"has {list(v.shape)} for {held.numel()} classes"
        if any(bool(v[c].any()) for c in (~held).nonzero().flatten().tolist()):
            yield "says something of classes that are not held"
    if constraints.symmetric:
        yield from _not_symmetric(v, held)
    if constraints.psd:
        yield from _indefinite(v, held)
    if constraints.probabilities:
        total = tensors.get(constraints.probabilities) if isinstance(constraints.probabilities, str) else torch.ones(())
        rows = v if held is None else v[held]
        yield from _not_probabilities(rows, torch.zeros(()) if total is None else total)


def _not_counts(v: Tensor, most: int | None) -> Iterator[str]:
    if v.dtype == torch.bool or bool((v != v.floor()).any()):
        yield "holds a count that is not whole"
    if bool((v < 0).any()):
        yield "holds a count below 0"
    total = float(v.double().sum())
    if most is not None and total > most:
        yield f"counts {total:g} samples, and the client has {most}"
    if v.ndim == 0 and most and total == 0:
        yield "counts no samples at all"


def _not_labels(v: Tensor, classes: int | None) -> Iterator[str]:
    if v.is_floating_point() or v.dtype == torch.bool:
        yield "holds labels that are not whole numbers"
    if v.numel() and (int(v.min()) < 0 or (classes is not None and int(v.max()) >= classes)):
        yield f"holds labels from {int(v.min())} to {int(v.max())}, and there are {classes} classes"


def _not_symmetric(v: Tensor, held: Tensor | None) -> Iterator[str]:
    if v.ndim < 2 or v.shape[-1] != v.shape[-2]:
        yield f"has shape {list(v.shape)}, and no matrix of such a shape is symmetric"
    for matrix in _matrices(v, held):
        if torch.equal(matrix, matrix.mT):  # true of what honest clients send, and fast
            continue
        if float((matrix - matrix.mT).abs().max()) > TOLERANCE * float(matrix.abs().max()):
            yield "is not symmetric"


def _indefinite(v: Tensor, held: Tensor | None) -> Iterator[str]:
    """Try a Cholesky factorisation, after raising the diagonal by the tolerance for rounding."""
    for matrix in _matrices(v, held):
        margin = TOLERANCE * float(matrix.diagonal().abs().max()) + 1e-12
        if _is_near_low_rank(matrix, margin):
            continue
        raised = matrix.clone()
        raised.diagonal().add_(margin)
        if int(torch.linalg.cholesky_ex(raised).info) != 0:
            yield "is not positive semi-definite"


def _is_near_low_rank(matrix: Tensor, margin: float) -> bool:
    """Return True if a symmetric matrix differs from some L L^T of few columns by a norm of at most ``margin``.

    Such a matrix is positive semi-definite up to the margin. Covariances of few rows are, and a few columns take less
    time than a whole factorisation.
    """
    if len(matrix) <= 2 * FEW:
        return False
    left, factor = matrix.diagonal().clone(), matrix.new_zeros(len(matrix), FEW)
    for at in range(FEW):
        pivot = int(left.argmax())
        largest = float(left[pivot])
        if largest <= margin / len(matrix):
            break
        column = (matrix[pivot] - factor[:, :at] @ factor[pivot, :at]) / largest**0.5
        factor[:, at] = column
        left -= column.square()
    return float(torch.addmm(matrix, factor, factor.T, alpha=-1).norm()) <= margin


def _matrices(v: Tensor, held: Tensor | None) -> Iterator[Tensor]:
    """Yield one matrix at a time, of the classes that are held: all at once would double the memory."""
    if not v.numel():
        return
    if held is None:
        yield from v.reshape(-1, *v.shape[-2:])
    else:
        for c in held.nonzero().flatten().tolist():
            yield from v[c].reshape(-1, *v.shape[-2:])


def _not_probabilities(v: Tensor, total: Tensor) -> Iterator[str]:
    off = (v.sum(-1) - total).abs() > SUM_TOLERANCE * total.clamp(min=1)
    if bool((v < -SUM_TOLERANCE).any()) or bool(off.any()):
        yield "holds rows that do not sum to what probabilities should"
