"""Keep the preparations of all clients together: apply them, describe them, and write and read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import AtollError
from ...typing import ClientId
from ..dataset import Array
from ..federated_dataset import FederatedDataset
from .preparation import Preparation, from_json
from .statistics import ColumnStatistics

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
                    f"--columns own: client {i!r} has no column with different values in half of its training samples. "
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
        return (f"Categories of too few training samples, whose cells count as empty: {'; '.join(unknown)}.",)

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
                "Public samples must mean the same to all clients, but with --standardise site, --missing site or "
                "--columns own each client prepares samples in its own way. Use --standardise all, --missing all and "
                "--columns common, or a method without public samples."
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
