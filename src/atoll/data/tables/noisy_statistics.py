"""Measure columns and targets with Gaussian noise, for runs under differential privacy.

A number x whose bounds are declared as [low, high] becomes u = (x - c) / h with the middle c and half the width h, cut
off at -1 and 1. A row adds (1, u, u^2) to three sums of each column, and nothing where the cell is empty. One row so
moves the sums of D columns and targets by at most sqrt(3 D) together, which is what the noise hides. Where whole
clients are hidden, each client divides its sums by its number of rows, and moves them by at most sqrt(3 D) itself.

Categories must be declared, so that nothing is sent of them. Means and deviations follow from the noisy sums.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import AtollError
from ...utils.secure_random import Normal
from ..dataset import Array
from .columns import TEXT, Bounds
from .statistics import ALL, NO_LABELS, ColumnStatistics, StatisticsRequest, add_up

SUMS = 3  # of each column: cells with a value, u and u^2
FLAT = 1 / 3  # variance of u if it is spread evenly: what is assumed where noise hides the variance
USABLE = 2.0  # standard deviations of noise that a count must reach, so that a mean is taken from it
EMPTY = "{}"  # no vocabulary


class Noise(NamedTuple):
    """The noise on statistics.

    Args:
        multiplier: its standard deviation, in units of the sensitivity.
        whole_clients: whether it hides all rows of a client together, in place of one row.
    """

    multiplier: float
    whole_clients: bool


def measured_columns(request: StatisticsRequest) -> list[int]:
    """Return the positions of the columns whose sums are asked for."""
    wanted = request.columns if request.options.needs_sums else ()
    return [at for at, column in enumerate(wanted) if column.is_number]


def sensitivity(request: StatisticsRequest) -> float:
    """Return the largest change of all released sums by what the noise hides."""
    return sqrt(SUMS * (len(measured_columns(request)) + request.targets))


def check_declared(request: StatisticsRequest) -> None:
    """Raise an AtollError for a column or target whose statistics noise cannot cover."""
    for column in request.columns:
        if column.kind == TEXT:
            raise AtollError("--dp does not cover the vocabulary of texts. Use token ids, or leave --dp out.")
        if not column.is_number and not column.fixed:
            raise AtollError(
                f"--dp: the categories of column {column.name!r} are those of the rows, and must be declared. Write "
                f"them into the schema file of everybody's table: 'columns: {{{column.name}: [a, b]}}'."
            )
    if request.class_names:
        raise AtollError(
            "--dp does not cover names of classes, and sites have different ones. List all classes at every site: "
            "'classes: [a, b]' in the schema file, or 'rows.csv?classes=a,b'."
        )
    for at in measured_columns(request):
        _check_bounds(f"column {request.columns[at].name!r}", request.columns[at].name, request.columns[at].bounds)
    for at in range(request.targets):
        bounds = request.target_bounds[at] if at < len(request.target_bounds) else None
        _check_bounds(f"the number to predict, target {at + 1},", "NAME", bounds)


def _check_bounds(what: str, name: str, bounds: Bounds | None) -> None:
    if bounds is None:
        raise AtollError(
            f"--dp: {what} has no declared bounds, on which the noise depends. Write them into the schema file of "
            f"everybody's table: 'columns: {{{name}: {{min: 0, max: 120}}}}', by what is possible and not by the rows."
        )


def measure_noisily(x: Array, y: Array, request: StatisticsRequest, noise: Noise, normal: Normal) -> ColumnStatistics:
    """Measure what a client sends: noisy sums, in the unit of the declared bounds.

    Args:
        x: raw training rows.
        y: their targets ``[N, T]``; not read if no targets are asked for.
        request: what is asked for.
        noise: how much noise is added, and what it hides.
        normal: the source of the noise.
    """
    at = measured_columns(request)
    parts = [_sums(x[:, i], request.columns[i].bounds) for i in at]
    parts += [_sums(y[:, i].astype(np.float64), request.target_bounds[i]) for i in range(request.targets)]
    exact = torch.tensor(parts, dtype=torch.float64).reshape(-1, SUMS)
    exact = exact / max(1, len(x)) if noise.whole_clients else exact
    noisy = exact + noise.multiplier * sensitivity(request) * normal(tuple(exact.shape))
    columns = torch.zeros(len(request.columns), SUMS, dtype=torch.float64)
    columns[at] = noisy[: len(at)]
    targets = noisy[len(at) :]
    deviations = request.options.standardise == ALL
    return ColumnStatistics(
        rows=0,
        known=columns[:, 0] if at else None,
        total=columns[:, 1] if at else None,
        squares=columns[:, 2] if at and deviations else None,
        vocabulary=EMPTY,
        class_names="[]",
        target_rows=_target_rows(targets, noise.whole_clients),
        target_total=targets[:, 1] if request.targets else None,
        target_squares=targets[:, 2] if request.targets else None,
    )


def _target_rows(targets: Tensor, whole_clients: bool) -> int:
    """Return the count behind the sums of targets, which have no empty cells: one for a whole client, else noisy."""
    if not len(targets):
        return 0
    return 1 if whole_clients else max(0, round(float(targets[0, 0])))


def _sums(values: Array, bounds: Bounds | None) -> list[float]:
    assert bounds is not None
    low, high = bounds
    u = np.clip((values[~np.isnan(values)] - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
    return [float(len(u)), float(u.sum()), float(np.square(u).sum())]


def add_up_noisy(parts: Sequence[ColumnStatistics], request: StatisticsRequest, noise: Noise) -> ColumnStatistics:
    """Add up noisy sums, and return sums in the unit of the files that agree with the declared bounds.

    Means are cut off at the bounds. Where noise hides a count or a variance, a column is taken as spread evenly between
    its bounds. All this reads noisy sums alone, and costs no further privacy.
    """
    whole = add_up(parts)
    deviation = noise.multiplier * sensitivity(request) * sqrt(len(parts))
    least = max(USABLE * deviation, 0 if noise.whole_clients else request.options.least)
    made = replace(whole, **NO_LABELS)
    if whole.known is not None and whole.total is not None:
        bounds = [column.bounds or (-1.0, 1.0) for column in request.columns]
        sums = _settle_all(whole.known, whole.total, whole.squares, bounds, least)
        known, total, squares = (torch.tensor(values, dtype=torch.float64) for values in zip(*sums, strict=True))
        made = replace(made, known=known.long(), total=total, squares=None if whole.squares is None else squares)
    if whole.target_total is None or whole.target_squares is None:
        return made
    count = torch.full_like(whole.target_total, float(whole.target_rows))
    bounds = [each or (-1.0, 1.0) for each in request.target_bounds]
    sums = _settle_all(count, whole.target_total, whole.target_squares, bounds, least)
    return replace(
        made,
        target_rows=int(sums[0][0]),
        target_total=torch.tensor([total for _, total, _ in sums], dtype=torch.float64),
        target_squares=torch.tensor([squares for _, _, squares in sums], dtype=torch.float64),
    )


def _settle_all(
    known: Tensor, total: Tensor, squares: Tensor | None, bounds: Sequence[Bounds], least: float
) -> list[tuple[float, float, float]]:
    squares = torch.zeros_like(known) if squares is None else squares
    lists = zip(known.tolist(), total.tolist(), squares.tolist(), bounds, strict=True)
    return [_settled(n, s, q, each, least) for n, s, q, each in lists]


def _settled(known: float, total: float, squares: float, bounds: Bounds, least: float) -> tuple[float, float, float]:
    """Return count, sum and sum of squares in the unit of the file."""
    low, high = bounds
    centre, half = (low + high) / 2, (high - low) / 2
    mean, variance = 0.0, FLAT
    if known >= least and known > 0:
        mean = min(1.0, max(-1.0, total / known))
        found = squares / known - mean * mean
        variance = min(1.0, found) if found > 0 else FLAT
    count = float(max(1, round(min(known, 2.0**52))))
    mean, variance = centre + half * mean, half * half * variance
    return count, count * mean, count * (variance + mean * mean)
