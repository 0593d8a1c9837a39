"""Let sites agree on columns, classes and statistics before a run, and prepare their rows by the agreement.

The description of a site names its columns. The server compares them, asks each site for its `ColumnStatistics` if the
rules of the run need any, adds them up, and announces columns and sum with the run. The sum also has the names of
classes, if sites have different ones, and the sums of targets, if labels are numbers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..data.dataset import Array, Dataset
from ..data.federated_dataset import FederatedDataset
from ..data.tables.columns import CATEGORY, KINDS, Column, read_bounds, recode
from ..data.tables.preparation import Preparation, fit
from ..data.tables.statistics import (
    COMMON,
    ColumnStatistics,
    TableOptions,
    find_own_columns,
    measure,
    nothing_measured,
)
from ..data.tables.statistics_files import statistics_from_json, statistics_to_json
from ..errors import AtollError
from ..typing import ClientId

MOST_COLUMNS = 2**16


class TableAgreement(NamedTuple):
    """What sites have agreed on.

    Args:
        columns: the columns of all sites; none if rows are no raw tables.
        agreed: the sum of their statistics; None if they had nothing to agree on.
        sent: what each site sent; known to the server alone.
    """

    columns: tuple[Column, ...]
    agreed: ColumnStatistics | None
    sent: Mapping[ClientId, ColumnStatistics]

    def to_json(self) -> dict[str, Any]:
        """Return the agreement as plain values, for the announcement of a run: without what single sites sent."""
        return {
            "columns": columns_to_json(self.columns),
            "agreed": None if self.agreed is None else statistics_to_json(self.agreed),
        }

    def to_stored(self) -> dict[str, Any]:
        """Return the agreement as plain values, for the server's own files."""
        return self.to_json() | {"sent": {i: statistics_to_json(sent) for i, sent in self.sent.items()}}

    def preparation(self, options: TableOptions, has: Collection[str] | None = None) -> Preparation:
        """Return the preparation as far as it follows from the agreement: without means of single sites.

        Args:
            options: the rules of the run.
            has: names of the columns that a site has, under ``--columns own``; None for all.
        """
        made = fit(self.columns, self.agreed, nothing_measured(self.columns), options._replace(columns=COMMON))
        if has is None:
            return made
        return Preparation(tuple(replace(column, own=column.name in has) for column in made.columns))


def read_agreement(values: Mapping[str, Any]) -> TableAgreement:
    """Return an agreement from plain values.

    Raises:
        AtollError: the values are malformed.
    """
    try:
        agreed, sent = values["agreed"], dict(values.get("sent", {}))
        return TableAgreement(
            columns_from_json(values["columns"]),
            None if agreed is None else statistics_from_json(agreed),
            {str(i): statistics_from_json(each) for i, each in sent.items()},
        )
    except (KeyError, TypeError, ValueError) as reason:
        raise AtollError(f"The columns that the server announces are malformed ({reason!r}).") from reason


def columns_to_json(columns: Sequence[Column]) -> list[list[object]]:
    """Return columns as plain values, with levels and bounds that are declared and without levels of a site's rows."""
    return [
        [c.name, c.kind, list(c.levels) if c.fixed else None, None if c.bounds is None else list(c.bounds)]
        for c in columns
    ]


def columns_from_json(values: object) -> tuple[Column, ...]:
    """Return columns from plain values that another machine sent.

    Raises:
        ValueError: the values are malformed.
    """
    if not isinstance(values, list) or len(values) > MOST_COLUMNS:
        raise ValueError("columns are no list")
    made = []
    for name, kind, levels, bounds in values:
        listed = levels is None or (kind == CATEGORY and all(isinstance(level, str) for level in levels))
        if not isinstance(name, str) or kind not in (*KINDS, "empty") or not listed:
            raise ValueError(f"a column is {name!r}, {kind!r}")
        made.append(Column(name, kind, tuple(levels or ()), levels is not None, read_bounds(bounds)))
    return tuple(made)


def has_gaps(data: Dataset) -> bool:
    """Return True if a cell of a column of numbers is empty."""
    parts = (data.x_train, data.x_test)
    return any(bool(np.isnan(x[:, at]).any()) for at, c in enumerate(data.columns) if c.is_number for x in parts)


def own_columns(federation: FederatedDataset) -> list[str]:
    """Return the names of the columns that the only client of a federation has, under ``--columns own``."""
    columns = federation.dataset.columns
    if not columns:
        return []
    there = find_own_columns(measure(federation.rows(federation.train[0]), columns), columns)
    return [column.name for column, own in zip(columns, there, strict=True) if own]


def with_agreed_columns(
    federation: FederatedDataset, wanted: Sequence[Column], options: TableOptions
) -> FederatedDataset:
    """Return the rows of a site with the agreed columns in their order, and with its own levels.

    Args:
        federation: the site's rows.
        wanted: the columns of all sites.
        options: the rules of the run; with ``--columns own``, cells of a column that the site lacks are empty.

    Raises:
        AtollError: a column is missing, or has another kind or other bounds.
    """
    data = federation.dataset
    own = {column.name: column for column in data.columns}
    for column in wanted:
        if column.name in own and own[column.name].bounds != column.bounds:
            raise AtollError(f"The server names other bounds of column {column.name!r} than the site's schema.")
    columns = tuple(
        column if column.fixed or column.name not in own else replace(column, levels=own[column.name].levels)
        for column in wanted
    )
    lacking = {column.name for column in wanted} if options.own_columns else set[str]()
    x_train, x_test = (recode(x, data.columns, columns, data.name, lacking) for x in (data.x_train, data.x_test))
    return replace(federation, dataset=replace(data, columns=columns, x_train=x_train, x_test=x_test))


def prepare_public(rows: Array, columns: Sequence[Column], preparation: Preparation | None) -> Array:
    """Return prepared public rows; ``columns`` are those of the file that they come from.

    Raises:
        AtollError: the file has no named columns, or others than the sites.
    """
    if preparation is None:
        return rows
    if not columns:
        raise AtollError("Public samples have no named columns. Give them as a table with the columns of the sites.")
    return preparation.apply(rows, columns)
