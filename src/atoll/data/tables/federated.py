"""Fit the preparation of rows for the clients of a federation, on their training rows, as sites do it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ...typing import ClientId
from ...utils.secure_random import Normal
from ..federated_dataset import FederatedDataset
from .client_statistics import count_targets, measure_client, measure_client_noisily
from .noisy_statistics import Noise, add_up_noisy, check_declared
from .preparation import fit
from .preparations import Preparations
from .statistics import (
    ColumnStatistics,
    StatisticsRequest,
    TableOptions,
    add_up,
    is_agreement_needed,
    measure,
)
from .statistics_files import key_of


class Privately(NamedTuple):
    """Noise for the statistics of clients.

    Args:
        noise: how much of it is added, and what it hides.
        source: returns the source of the noise of a client.
        sent: what clients sent already, which is not sent again; None if they have not.
    """

    noise: Noise
    source: Callable[[ClientId], Normal]
    sent: Mapping[ClientId, ColumnStatistics] | None = None


def fit_clients(
    federation: FederatedDataset, options: TableOptions, privately: Privately | None = None
) -> Preparations:
    """Fit the preparation of every client of a simulation. Clients compute and send what sites would.

    Args:
        federation: the clients and their data.
        options: the rules of the run.
        privately: the noise on what clients send; None for none.
    """
    columns = federation.dataset.columns
    rows = (
        {i: federation.rows(own) for i, own in zip(federation.clients, federation.train, strict=True)}
        if columns
        else {}
    )
    gaps = any(
        column.is_number and np.isnan(x[:, at]).any() for at, column in enumerate(columns) for x in rows.values()
    )
    request = StatisticsRequest(
        columns,
        options,
        class_names=bool(columns) and _have_different_classes(federation),
        targets=count_targets(federation.dataset, options),
        target_bounds=federation.dataset.target_bounds,
    )
    sent: dict[ClientId, ColumnStatistics] = {}
    agreed = None
    if is_agreement_needed(columns, gaps, options) or request.class_names or request.targets:
        sent, agreed = _agree(federation, request, privately)
    by_client = {i: fit(columns, agreed, measure(x, columns), options) for i, x in rows.items()}
    noise = key_of(federation, options, privately.noise) if privately and sent else ""
    return Preparations(by_client, sent, agreed, options.own_columns, noise)


def _agree(
    federation: FederatedDataset, request: StatisticsRequest, privately: Privately | None
) -> tuple[dict[ClientId, ColumnStatistics], ColumnStatistics]:
    """Return what each client sends, and what they agree on."""
    if privately is None:
        sent = {i: measure_client(federation, at, request) for at, i in enumerate(federation.clients)}
        return sent, add_up(list(sent.values()))
    check_declared(request)
    made = privately.sent or {
        i: measure_client_noisily(federation, at, request, privately.noise, privately.source(i))
        for at, i in enumerate(federation.clients)
    }
    sent = {i: made[i] for i in federation.clients}
    return sent, add_up_noisy(list(sent.values()), request, privately.noise)


def _have_different_classes(federation: FederatedDataset) -> bool:
    if not federation.dataset.open_classes:
        return False
    everybody = [federation.owned(at) for at in range(len(federation.clients))]
    return len({frozenset(federation.labels(rows).tolist()) for rows in everybody}) > 1
