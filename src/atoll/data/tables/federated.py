"""Fit the preparation of rows for the clients of a federation, on their training rows, as sites do it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core.problems import Numbers
from ...errors import AtollError
from ...typing import ClientId
from ...utils.secure_random import Normal
from ..dataset import Array, Dataset
from ..federated_dataset import FederatedDataset
from .labels import class_order, frequent_names, names_to_text, sum_targets
from .noisy_statistics import Noise, add_up_noisy, check_declared, measure_noisily
from .preparation import Preparation, fit, from_json
from .statistics import (
    NO,
    ColumnStatistics,
    StatisticsRequest,
    TableOptions,
    add_up,
    is_agreement_needed,
    measure,
    to_send,
)
from .statistics_files import key_of

PREPARATION = "preparation.json"  # in the directory of a run
EVERY = "all clients"  # entry of a preparation that all clients share


@dataclass(frozen=True)
class Preparations:
    """The preparations of all clients, and what they follow from.

    Args:
        by_client: the preparation of each client; empty if rows are used as they are.
        sent: what each client sent to agree on them; empty if nothing had to be agreed on.
        agreed: the sum of what was sent.
        own_columns: whether each client's model reads the columns that the client has, and no others.
        noise: key of the file with what was sent, if it has noise and cannot be measured again.
    """

    by_client: Mapping[ClientId, Preparation] = field(default_factory=dict)
    sent: Mapping[ClientId, ColumnStatistics] = field(default_factory=dict)
    agreed: ColumnStatistics | None = None
    own_columns: bool = False
    noise: str = ""

    def __bool__(self) -> bool:
        return bool(self.by_client)

    @property
    def common(self) -> Preparation | None:
        """Return the preparation that all clients share, or None."""
        first = next(iter(self.by_client.values()), None)
        return first if all(other == first for other in self.by_client.values()) else None

    def to_json(self) -> dict[str, Any]:
        """Return the preparations as plain values: one for all clients, or one for each."""
        if self.common is not None:
            return {EVERY: self.common.to_json()}
        return {i: preparation.to_json() for i, preparation in self.by_client.items()}

    @property
    def own_inputs(self) -> dict[ClientId, tuple[int, ...]]:
        """Return the positions of the inputs that each client's model reads; empty if all models read all of them.

        Raises:
            AtollError: a client has no column of its own.
        """
        if not self.own_columns:
            return {}
        for i, preparation in self.by_client.items():
            if not preparation.own_inputs:
                raise AtollError(
                    f"--columns own: client {i!r} has no column with different values in half of its training rows. "
                    "Leave the client out, or use --columns common."
                )
        return {i: preparation.own_inputs for i, preparation in self.by_client.items()}

    def notes(self, federation: FederatedDataset) -> tuple[str, ...]:
        """Return sentences on columns that clients lack, and on categories whose cells count as empty."""
        lacking = {i: [c.name for c in own.columns if not c.own] for i, own in self.by_client.items()}
        listed = tuple(f"Client {i} has no column {', '.join(names)}." for i, names in lacking.items() if names)
        return listed + self._unknown_levels(federation)

    def _unknown_levels(self, federation: FederatedDataset) -> tuple[str, ...]:
        first = next(iter(self.by_client.values()), None)
        if first is None or first.is_text:
            return ()
        unknown: list[str] = []
        for at, (column, prepared) in enumerate(zip(federation.dataset.columns, first.columns, strict=True)):
            codes = [code for code, level in enumerate(column.levels) if level not in prepared.levels]
            rows = np.concatenate([*federation.train, *federation.val, *federation.test])
            cells = np.isin(federation.rows(rows)[:, at], codes).sum() if codes and not column.is_number else 0
            if cells:
                unknown.append(f"{column.name} {', '.join(column.levels[code] for code in codes)} ({cells} cells)")
        if not unknown:
            return ()
        return (f"Categories of too few training rows, whose cells count as empty: {'; '.join(unknown)}.",)

    def apply(self, federation: FederatedDataset, owned: Sequence[Array]) -> Array:
        """Return the prepared rows of all clients, in the order of the clients.

        Args:
            federation: the clients and their data.
            owned: row indices of each client.
        """
        if not self:
            return federation.rows(np.concatenate(owned))
        columns, common = federation.dataset.columns, self.common
        if common is not None:
            return common.apply(federation.rows(np.concatenate(owned)), columns)
        parts = zip(federation.clients, owned, strict=True)
        return np.concatenate([self.by_client[i].apply(federation.rows(rows), columns) for i, rows in parts])

    def apply_public(self, rows: Array | None, federation: FederatedDataset) -> Array | None:
        """Return prepared public rows, which all clients and the server see alike.

        Raises:
            AtollError: clients prepare rows differently.
        """
        if rows is None or not self:
            return rows
        common = self.common
        if common is None:
            raise AtollError(
                "Public rows must mean the same to all clients, but with --standardise site, --missing site or "
                "--columns own each client prepares rows in its own way. Use --standardise all, --missing all and "
                "--columns common, or a method without public rows."
            )
        return common.apply(rows, federation.dataset.columns)


def read_preparations(values: Mapping[str, Any], clients: Sequence[ClientId]) -> Preparations:
    """Return preparations from plain values.

    Raises:
        AtollError: the values are damaged, or lack a client.
    """
    try:
        common = from_json(values[EVERY]) if EVERY in values else None
        return Preparations({i: common or from_json(values[i]) for i in clients})
    except (KeyError, TypeError) as reason:
        raise AtollError(f"{PREPARATION} is damaged ({reason!r}). Repeat the run.") from reason


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
        names = frequent_names(federation.dataset.classes, federation.labels(_owned(federation, at)), least)
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


def _have_different_classes(federation: FederatedDataset) -> bool:
    if not federation.dataset.open_classes:
        return False
    everybody = [_owned(federation, at) for at in range(len(federation.clients))]
    return len({frozenset(federation.labels(rows).tolist()) for rows in everybody}) > 1


def _owned(federation: FederatedDataset, at: int) -> Array:
    return np.concatenate([federation.train[at], federation.val[at], federation.test[at]])
