"""Prepare raw rows of tables and texts for models: fill, standardise, encode categories and words.

A preparation follows from statistics of training rows alone. It is a part of a trained model, and is kept with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...errors import AtollError
from ..dataset import Array
from .columns import TEXT, Column, recode
from .labels import deviation
from .statistics import (
    ALL,
    INDICATOR,
    MOST_WORDS,
    SITE,
    ColumnStatistics,
    TableOptions,
    find_own_columns,
    read_vocabulary,
)


@dataclass(frozen=True)
class ColumnPreparation:
    """The preparation of one column.

    Args:
        name: its name in files.
        kind: its kind.
        mean: what is subtracted from a number.
        deviation: what the difference is divided by.
        fill: the value of an empty cell, in the unit of the file.
        indicator: whether a further input says that the cell was empty.
        levels: categories with an input each, or words with an id each, from 2 on.
        is_scaled: whether mean and deviation are those of training rows.
        own: whether the client has the column; otherwise its inputs are 0, and its model does not read them.
    """

    name: str
    kind: str
    mean: float = 0.0
    deviation: float = 1.0
    fill: float = 0.0
    indicator: bool = False
    levels: tuple[str, ...] = ()
    is_scaled: bool = False
    own: bool = True

    @property
    def column(self) -> Column:
        """Return the column of raw rows that is prepared."""
        return Column(self.name, self.kind, self.levels)

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs of a model that the column becomes."""
        own = [self.name] if self.column.is_number else [f"{self.name}={level}" for level in self.levels]
        return own + [f"{self.name} is empty"] * self.indicator


@dataclass(frozen=True)
class Preparation:
    """The preparation of all columns of a table, or of a text."""

    columns: tuple[ColumnPreparation, ...]

    @property
    def raw_columns(self) -> tuple[Column, ...]:
        """Return the columns of raw rows, with the codes that the preparation uses."""
        return tuple(column.column for column in self.columns)

    @property
    def is_text(self) -> bool:
        """Return True if rows are texts."""
        return self.columns[0].kind == TEXT

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs of a model."""
        return [name for column in self.columns for name in column.inputs]

    @property
    def lacking(self) -> frozenset[str]:
        """Return the names of the columns that the client does not have."""
        return frozenset(column.name for column in self.columns if not column.own)

    @property
    def own_inputs(self) -> tuple[int, ...]:
        """Return the positions of the inputs of the columns that the client has."""
        own = [column.own for column in self.columns for _ in column.inputs]
        return tuple(at for at, there in enumerate(own) if there)

    def apply(self, x: Array, columns: Sequence[Column] | None = None) -> Array:
        """Prepare raw rows.

        Args:
            x: raw rows.
            columns: their columns; by default those of the preparation.

        Returns:
            float32 ``[N, inputs]`` of a table, int64 ``[N, length]`` of texts.
        """
        raw = x if columns is None else recode(x, columns, self.raw_columns, lacking=self.lacking)
        if self.is_text:
            return raw
        parts = [_prepare(raw[:, at], column) for at, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the preparation as plain values."""
        return [asdict(column) | {"levels": list(column.levels)} for column in self.columns]


def from_json(values: Sequence[Mapping[str, Any]]) -> Preparation:
    """Return a preparation from plain values.

    Raises:
        AtollError: the values are no preparation.
    """
    try:
        return Preparation(tuple(ColumnPreparation(**{**v, "levels": tuple(v["levels"])}) for v in values))
    except (TypeError, KeyError, ValueError) as reason:
        raise AtollError(f"The stored preparation of rows is damaged ({reason!r}). Repeat the run.") from reason


def fit(
    columns: Sequence[Column], agreed: ColumnStatistics | None, own: ColumnStatistics, options: TableOptions
) -> Preparation:
    """Make the preparation of a site.

    Args:
        columns: the columns of all sites.
        agreed: the statistics of all sites together; None if sites had nothing to agree on.
        own: all statistics of the site's own training rows.
        options: the rules of the run.
    """
    shared = None if agreed is None else _Moments(agreed)
    alone = _Moments(own)
    vocabulary = read_vocabulary(own if agreed is None else agreed)
    made = [
        _fit_number(at, column, shared, alone, options)
        if column.is_number
        else _fit_levels(at, column, vocabulary.get(column.name, {}), shared, options)
        for at, column in enumerate(columns)
    ]
    if options.own_columns:
        there = find_own_columns(own, columns)
        made = [replace(column, own=there[at]) for at, column in enumerate(made)]
    return Preparation(tuple(made))


class _Moments:
    """Means and deviations of columns, by position. Columns without a value have none."""

    def __init__(self, statistics: ColumnStatistics):
        self._rows = statistics.rows
        self._known = [] if statistics.known is None else statistics.known.tolist()
        self._total = [] if statistics.total is None else statistics.total.tolist()
        self._squares = [] if statistics.squares is None else statistics.squares.tolist()

    def has_gaps(self, at: int) -> bool:
        return bool(self._known) and self._known[at] < self._rows

    def mean(self, at: int) -> float | None:
        return self._total[at] / self._known[at] if self._known and self._known[at] else None

    def deviation(self, at: int) -> float:
        """Return the deviation over known cells; 1 if there are none."""
        if not self._squares or not self._known[at]:
            return 1.0
        return deviation(self._total[at], self._squares[at], self._known[at])


def _fit_number(
    at: int, column: Column, shared: _Moments | None, alone: _Moments, options: TableOptions
) -> ColumnPreparation:
    agreed = None if shared is None else shared.mean(at)
    source = {ALL: shared, SITE: alone}.get(options.standardise)
    centre = None if source is None else source.mean(at)
    mean = 0.0 if centre is None else centre
    deviation = 1.0 if source is None else source.deviation(at)
    known = (
        [alone.mean(at), agreed] if options.missing == SITE else [agreed, alone.mean(at) if shared is None else None]
    )
    fill = next((value for value in known if value is not None), mean)
    indicator = _has_indicator(at, shared, options)
    scaled = centre is not None
    return ColumnPreparation(column.name, column.kind, mean, deviation, fill, indicator, is_scaled=scaled)


def _fit_levels(
    at: int, column: Column, counts: Mapping[str, int], shared: _Moments | None, options: TableOptions
) -> ColumnPreparation:
    if column.kind == TEXT:
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return ColumnPreparation(column.name, TEXT, levels=tuple(ranked[:MOST_WORDS]))
    levels = column.levels if column.fixed else tuple(sorted(counts))
    indicator = _has_indicator(at, shared, options)
    return ColumnPreparation(column.name, column.kind, indicator=indicator, levels=levels)


def _has_indicator(at: int, shared: _Moments | None, options: TableOptions) -> bool:
    """Return True if an input marks empty cells: always under differential privacy, which hides whether any are."""
    return options.missing == INDICATOR and shared is not None and (options.private or shared.has_gaps(at))


def _prepare(values: Array, column: ColumnPreparation) -> Array:
    """Return the inputs that a column becomes, float64 ``[N, inputs]``."""
    if not column.own:
        return np.zeros((len(values), len(column.inputs)))
    empty = np.isnan(values)
    if column.column.is_number:
        filled = np.where(empty, column.fill, values)
        made = ((filled - column.mean) / column.deviation)[:, None]
    else:
        made = (values[:, None] == np.arange(len(column.levels))).astype(np.float64)
    return np.concatenate([made, empty[:, None]], axis=1) if column.indicator else made
