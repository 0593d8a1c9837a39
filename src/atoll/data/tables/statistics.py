"""Measure columns of training rows, and add up what several sites have measured.

What sites must agree on before they can train together is one payload: of each column the number of cells with a value,
their sum and the sum of their squares, and the categories with their numbers of rows; the names of classes, if sites
have different ones; and sums of the targets, if labels are numbers. The server adds the payloads up and sends the sum
back.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.payloads import Role, about, payload
from ..dataset import Array
from .columns import FIRST_WORD, TEXT, Bounds, Column
from .labels import join_names

SITE, ALL, NO = "site", "all", "no"
STANDARDISE = (ALL, SITE, NO)
INDICATOR = "indicator"
MISSING = (ALL, SITE, INDICATOR)
COMMON, OWN = "common", "own"
COLUMNS = (COMMON, OWN)
FILLED = 0.5  # share of cells with a value from which on a client has a column of its own
MOST_WORDS = 10_000 - FIRST_WORD  # words of a vocabulary, so that an embedding of 10,000 rows fits
TOLERANCE = 1e-9  # relative, of sums of squares

Vocabulary = dict[str, dict[str, int]]  # number of rows, or of occurrences of words, by column and level


class TableOptions(NamedTuple):
    """The rules by which a run prepares tables.

    Args:
        standardise: over which rows means and deviations are taken: ``all`` sites' training rows, those of each
            ``site``, or ``no`` standardisation.
        missing: what fills an empty cell: the mean over ``all`` sites or over the ``site``; ``indicator`` is the mean
            over all sites and a further column that marks the cell.
        least: smallest number of rows behind a number that leaves a site; 0 for no limit.
        columns: whether all models read all columns (``common``), or each those that its client has (``own``).
        private: whether differential privacy covers what is sent, so that nothing may follow from rows without noise.
    """

    standardise: str = ALL
    missing: str = ALL
    least: int = 0
    columns: str = COMMON
    private: bool = False

    @property
    def own_columns(self) -> bool:
        """Return True if each model reads the columns that its client has."""
        return self.columns == OWN

    @property
    def needs_sums(self) -> bool:
        """Return True if sites must agree on means."""
        return self.standardise == ALL or self.missing in (ALL, INDICATOR)


class StatisticsRequest(NamedTuple):
    """What sites are asked for.

    Args:
        columns: the columns of all sites; none if rows are no raw tables.
        options: the rules of the run.
        class_names: whether the names of classes are asked for, because sites have different ones.
        targets: number of targets whose sums are asked for; 0 if targets keep the unit of the files.
        target_bounds: the declared bounds of each target.
    """

    columns: tuple[Column, ...]
    options: TableOptions
    class_names: bool = False
    targets: int = 0
    target_bounds: tuple[Bounds | None, ...] = ()


@payload
class ColumnStatistics:
    """Statistics of the training rows of a site, or of several together."""

    rows: int = about("number of training samples", role=Role.COUNT)
    known: Tensor | None = about("cells with a value, of each column", role=Role.COUNT)
    total: Tensor | None = about("sum of the values of each column of numbers", role=Role.OTHER)
    squares: Tensor | None = about("sum of their squares", role=Role.OTHER)
    vocabulary: str = about("categories or words of each column with their counts, as JSON", role=Role.OTHER)
    class_names: str = about("names of the classes, as JSON; none if sites have the same", role=Role.OTHER)
    target_rows: int = about("training samples behind the sums of targets", role=Role.COUNT)
    target_total: Tensor | None = about("sum of each target that is a number", role=Role.OTHER)
    target_squares: Tensor | None = about("sum of its squares", role=Role.OTHER)


NO_LABELS: dict[str, Any] = {"class_names": "[]", "target_rows": 0, "target_total": None, "target_squares": None}


def is_agreement_needed(columns: Sequence[Column], gaps: bool, options: TableOptions) -> bool:
    """Return True if sites with these columns have to exchange statistics before they can prepare rows.

    Args:
        columns: the columns of all sites.
        gaps: whether a site has empty cells in columns of numbers.
        options: the rules of the run.
    """
    numbers = any(column.is_number for column in columns)
    open_levels = any(not column.is_number and not column.fixed for column in columns)
    gaps = gaps or options.private  # Whether there are any is known from the rows alone.
    return open_levels or (numbers and (options.standardise == ALL or (gaps and options.needs_sums)))


def measure(x: Array, columns: Sequence[Column]) -> ColumnStatistics:
    """Measure all statistics of raw rows, for use on the same machine."""
    known = np.array([len(x)] if _is_text(columns) else [(~np.isnan(x[:, at])).sum() for at in range(len(columns))])
    total, squares = np.zeros(len(columns)), np.zeros(len(columns))
    vocabulary: Vocabulary = {}
    for at, column in enumerate(columns):
        if column.is_number:
            values = x[:, at][~np.isnan(x[:, at])]
            total[at] = math.fsum(values.tolist())
            squares[at] = math.fsum((values * values).tolist())
        elif not column.fixed:
            vocabulary[column.name] = _counts(x if column.kind == TEXT else x[:, at], column)
    return ColumnStatistics(
        rows=len(x),
        known=torch.from_numpy(known.astype(np.int64)),
        total=torch.from_numpy(total),
        squares=torch.from_numpy(squares),
        vocabulary=_to_text(vocabulary),
        **NO_LABELS,
    )


def nothing_measured(columns: Sequence[Column]) -> ColumnStatistics:
    """Return the statistics of no rows."""
    zero = torch.zeros(len(columns), dtype=torch.float64)
    return ColumnStatistics(rows=0, known=zero.long(), total=zero, squares=zero, vocabulary=_to_text({}), **NO_LABELS)


def find_own_columns(own: ColumnStatistics, columns: Sequence[Column]) -> tuple[bool, ...]:
    """Return for each column whether a client has it: values in half of its training rows that are not all the same.

    Args:
        own: all statistics of the client's training rows.
        columns: the columns.
    """
    assert own.known is not None
    assert own.total is not None
    assert own.squares is not None
    filled = (own.known >= FILLED * own.rows) & (own.known > 0)
    spread = own.known * own.squares - own.total.square() > TOLERANCE * own.known * own.squares
    levels = read_vocabulary(own)
    varied = [
        bool(spread[at]) if column.is_number else column.fixed or len(levels[column.name]) > 1
        for at, column in enumerate(columns)
    ]
    return tuple(bool(there) and varies for there, varies in zip(filled, varied, strict=True))


def to_send(x: Array, columns: Sequence[Column], options: TableOptions) -> ColumnStatistics:
    """Measure what a site sends of its columns: what the rules need, without numbers of fewer than ``least`` rows."""
    whole = measure(x, columns)
    assert whole.known is not None
    assert whole.total is not None
    assert whole.squares is not None
    enough = whole.known >= options.least
    zero = torch.zeros_like(whole.total)
    vocabulary = {
        column.name: _frequent(x if column.kind == TEXT else x[:, at], column, options.least)
        for at, column in enumerate(columns)
        if not column.is_number and not column.fixed
    }
    sums, deviations = options.needs_sums, options.standardise == ALL
    return ColumnStatistics(
        rows=whole.rows,
        known=torch.where(enough, whole.known, 0) if sums else None,
        total=torch.where(enough, whole.total, zero) if sums else None,
        squares=torch.where(enough, whole.squares, zero) if deviations else None,
        vocabulary=_to_text(vocabulary),
        **NO_LABELS,
    )


def add_up(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    """Add up the statistics of sites. Sums are rounded once, so that the order of sites does not matter."""
    vocabulary: Vocabulary = {}
    for part in parts:
        for name, levels in read_vocabulary(part).items():
            own = vocabulary.setdefault(name, {})
            for level, count in levels.items():
                own[level] = own.get(level, 0) + count
    return ColumnStatistics(
        rows=sum(part.rows for part in parts),
        known=_sum([part.known for part in parts]),
        total=_sum([part.total for part in parts]),
        squares=_sum([part.squares for part in parts]),
        vocabulary=_to_text(vocabulary),
        class_names=join_names(part.class_names for part in parts),
        target_rows=sum(part.target_rows for part in parts),
        target_total=_sum([part.target_total for part in parts]),
        target_squares=_sum([part.target_squares for part in parts]),
    )


def read_vocabulary(statistics: ColumnStatistics) -> Vocabulary:
    """Return the categories or words of each column with their counts."""
    made: Vocabulary = json.loads(statistics.vocabulary)
    return made


def _counts(x: Array, column: Column) -> dict[str, int]:
    """Return the numbers of rows of each category, or of occurrences of each word, without those that do not occur."""
    return _frequent(x, column, least=1)


def _frequent(x: Array, column: Column, least: int) -> dict[str, int]:
    """Return the counts of the levels that occur in at least ``least`` rows, and at least once."""
    size = len(column.levels)
    if column.kind == TEXT:
        counts = np.bincount(x.ravel(), minlength=FIRST_WORD + size)[FIRST_WORD:]
        rows = np.zeros(FIRST_WORD + size, dtype=np.int64)
        for row in x if least > 1 else ():
            rows[np.unique(row)] += 1
        rows = rows[FIRST_WORD:] if least > 1 else counts
    else:
        counts = rows = np.bincount(x[~np.isnan(x)].astype(np.int64), minlength=size)
    return {level: int(counts[i]) for i, level in enumerate(column.levels) if rows[i] >= max(1, least)}


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    if len(given) < len(parts):
        return None
    stacked = torch.stack(given)
    if not stacked.is_floating_point():
        return stacked.sum(0)
    return torch.tensor([math.fsum(column) for column in stacked.T.tolist()], dtype=torch.float64)


def _to_text(vocabulary: Mapping[str, Mapping[str, int]]) -> str:
    return json.dumps(vocabulary, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _is_text(columns: Sequence[Column]) -> bool:
    return any(column.kind == TEXT for column in columns)
