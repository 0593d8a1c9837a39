"""Check statistics of columns and labels that another machine sent."""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import AtollError
from .columns import LARGEST, Column
from .labels import find_names_fault
from .noisy_statistics import EMPTY, measured_columns
from .statistics import ALL, TOLERANCE, ColumnStatistics, StatisticsRequest, TableOptions

MOST_SQUARES = 1e12 * LARGEST**2  # sums of squares of as many rows as a site can announce
MOST_SUM = 1e15  # of noisy sums, whose terms are between -1 and 1
MOST_LEVELS = 100_000  # categories of a site that the server reads


def check_statistics(where: str, found: ColumnStatistics, request: StatisticsRequest, rows: int) -> None:
    """Check statistics that another machine sent.

    Args:
        where: the sender, for messages.
        found: what arrived.
        request: what was asked for.
        rows: number of training rows that the sender has announced.

    Raises:
        AtollError: a number is impossible.
    """
    if request.options.private:
        fault = _find_noisy_fault(found, request)
    else:
        fault = _find_fault(found, request.columns, rows, request.options)
    fault = fault or find_names_fault(found.class_names, request.class_names) or _find_target_fault(found, request)
    if fault:
        raise AtollError(f"{where} sent statistics of columns that cannot be: {fault}. Install the same version there.")


def _find_fault(found: ColumnStatistics, columns: Sequence[Column], rows: int, options: TableOptions) -> str | None:
    present = [value is not None for value in (found.known, found.total, found.squares)]
    if present != [options.needs_sums, options.needs_sums, options.standardise == ALL]:
        return "other fields than the run needs"
    if found.rows != rows:
        return f"{found.rows} rows, but {rows} were announced"
    for value, kind in ((found.known, torch.int64), (found.total, torch.float64), (found.squares, torch.float64)):
        if value is not None and (value.dtype != kind or tuple(value.shape) != (len(columns),)):
            return f"{str(value.dtype)[6:]} of shape {list(value.shape)}"
        if value is not None and value.is_floating_point() and not bool(value.isfinite().all()):
            return "NaN or infinity"
        if value is not None and bool((value.double().abs() > MOST_SQUARES).any()):
            return "a sum that is larger than any number"
    if found.known is not None and not bool(((found.known >= 0) & (found.known <= rows)).all()):
        return "more cells than rows"
    if found.total is None or found.squares is None or found.known is None:
        return _find_vocabulary_fault(found, columns)
    if _are_too_large(found.total, found.squares, found.known):
        return "a sum that is larger than its squares allow"
    return _find_vocabulary_fault(found, columns)


def _find_noisy_fault(found: ColumnStatistics, request: StatisticsRequest) -> str | None:
    """Check sums with noise, which may be negative or larger than any rows have."""
    asked = bool(measured_columns(request))
    deviations = asked and request.options.standardise == ALL
    if [v is not None for v in (found.known, found.total, found.squares)] != [asked, asked, deviations]:
        return "other fields than the run needs"
    for value in (found.known, found.total, found.squares):
        if value is not None and (value.dtype != torch.float64 or tuple(value.shape) != (len(request.columns),)):
            return f"{str(value.dtype)[6:]} of shape {list(value.shape)}"
        if value is not None and not bool((value.abs() <= MOST_SUM).all()):
            return "NaN, infinity or a number that no sum can be"
    if found.rows or found.vocabulary != EMPTY:
        return "numbers without noise"
    return None


def _find_target_fault(found: ColumnStatistics, request: StatisticsRequest) -> str | None:
    total, squares = found.target_total, found.target_squares
    if total is None or squares is None or not request.targets:
        same = (total is None) == (squares is None) == (not request.targets)
        return None if same and not found.target_rows else "other sums of targets than the run needs"
    if any(v.dtype != torch.float64 or tuple(v.shape) != (request.targets,) for v in (total, squares)):
        return f"sums of targets of shape {list(total.shape)}"
    if request.options.private:
        sound = bool((total.abs() <= MOST_SUM).all() and (squares.abs() <= MOST_SUM).all())
        return None if sound and 0 <= found.target_rows <= MOST_SUM else "a number that no sum can be"
    if not bool((total.isfinite() & squares.isfinite()).all()):
        return "NaN or infinity"
    if bool((squares > MOST_SQUARES).any()):
        return "a sum that is larger than any number"
    if found.target_rows not in (0, found.rows):
        return f"targets of {found.target_rows} rows"
    return "a sum that is larger than its squares allow" if _are_too_large(total, squares, found.target_rows) else None


def _are_too_large(total: Tensor, squares: Tensor, count: Tensor | int) -> bool:
    """Return True if no numbers of that count can have these sums."""
    bound = count * squares * (1 + TOLERANCE) + TOLERANCE
    return bool((squares < 0).any()) or bool((total.square() > bound).any())


def _find_vocabulary_fault(found: ColumnStatistics, columns: Sequence[Column]) -> str | None:
    try:
        vocabulary = json.loads(found.vocabulary)
        levels = [(level, count) for own in vocabulary.values() for level, count in own.items()]
    except (ValueError, AttributeError, RecursionError):
        return "categories that cannot be read"
    wanted = {column.name for column in columns if not column.is_number and not column.fixed}
    if set(vocabulary) != wanted:
        return "categories of other columns"
    if len(levels) > MOST_LEVELS or not all(type(count) is int and 0 < count < 2**53 for _, count in levels):
        return "impossible counts of categories"
    return None
