"""Measure what each client of a federation sends before the first round, the same in a simulation and at a site."""

from dataclasses import replace

import torch

from ...core.problems import Numbers
from ...utils.secure_random import Normal
from ..dataset import Dataset
from ..federated_dataset import FederatedDataset
from .labels import class_order, frequent_names, names_to_text, sum_targets
from .noisy_statistics import Noise, measure_noisily
from .statistics import NO, ColumnStatistics, StatisticsRequest, TableOptions, to_send


def measure_client_noisily(
    federation: FederatedDataset, at: int, request: StatisticsRequest, noise: Noise, normal: Normal
) -> ColumnStatistics:
    """Measure what the client at a position sends under differential privacy."""
    train = federation.train[at]
    return measure_noisily(federation.rows(train), federation.labels(train), request, noise, normal)


def count_targets(data: Dataset, options: TableOptions) -> int:
    """Return the number of targets that get a common unit; 0 if labels are no numbers, or keep the unit of the file."""
    is_scaled = data.standardise_targets and options.standardise != NO
    return data.problem.outputs if isinstance(data.problem, Numbers) and is_scaled else 0


def measure_client(federation: FederatedDataset, at: int, request: StatisticsRequest) -> ColumnStatistics:
    """Measure what the client at a position sends: statistics of its columns and of its labels.

    Names of classes are those of all its rows, because a class of a test row is a class too; sums are over training
    rows. Names and sums of fewer than ``options.least`` rows are left out.
    """
    least = request.options.least
    train = federation.train[at]
    sent = to_send(federation.rows(train), request.columns, request.options)
    if request.class_names:
        names = frequent_names(federation.dataset.classes, federation.labels(federation.owned(at)), least)
        sent = replace(sent, class_names=names_to_text(sorted(names, key=class_order)))
    if not request.targets:
        return sent
    counted = train if len(train) >= least else train[:0]
    total, squares = sum_targets(federation.labels(counted))
    return replace(
        sent,
        target_rows=len(counted),
        target_total=torch.tensor(total, dtype=torch.float64),
        target_squares=torch.tensor(squares, dtype=torch.float64),
    )
