"""Hold the latest scores of clients as columns: an array for each score, with an entry for each client."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.group_scores import Columns
from ..typing import ClientId
from ..utils.parsing import Json
from .evaluation import Score


def to_columns(scores: Iterable[Mapping[str, float]]) -> Columns:
    """Return the scores of several clients as columns. A score that a client lacks is NaN."""
    each = list(scores)
    names = dict.fromkeys(name for score in each for name in score)
    return {name: np.array([score.get(name, np.nan) for score in each], dtype=np.float64) for name in names}


def to_scores(columns: Columns) -> list[Score]:
    """Return columns as one score for each client."""
    names, lists = list(columns), [column.tolist() for column in columns.values()]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


class ScoreTable:
    """The latest score of each client that was scored. Clients keep the order in which they came.

    Changes since :meth:`begin` can be undone, at a cost that grows with the changes and not with the clients.
    """

    def __init__(self, scores: Mapping[ClientId, Mapping[str, float]] | None = None) -> None:
        self._rows: dict[ClientId, int] = {}
        self._columns: Columns = {}
        self._room = 0  # length of the columns
        self._undo: list[tuple[int, NDArray[np.int64], Columns]] = []  # clients, rows and values before each change
        self._order: tuple[Sequence[ClientId], NDArray[np.int64]] | None = None  # rows of the clients asked for last
        self.update(scores or {})

    def update(self, scores: Mapping[ClientId, Mapping[str, float]]) -> None:
        """Put the scores of some clients in the place of their last ones."""
        if scores:
            self.put(list(scores), to_columns(scores.values()))

    def put(self, ids: Sequence[ClientId], columns: Columns) -> None:
        """Put the scores of some clients, as columns in the order of ``ids``, in the place of their last ones."""
        count = len(self._rows)
        rows = np.array([self._rows.setdefault(i, len(self._rows)) for i in ids], dtype=np.int64)
        self._grow(columns)
        self._undo.append((count, rows, {name: column[rows] for name, column in self._columns.items()}))
        for name, column in self._columns.items():
            column[rows] = columns.get(name, np.nan)

    def begin(self) -> None:
        """Forget how to undo earlier changes."""
        self._undo = []

    def undo(self) -> None:
        """Undo all changes since :meth:`begin`."""
        for count, rows, before in reversed(self._undo):
            for name, column in self._columns.items():
                column[rows] = before.get(name, np.nan)
            for i in list(self._rows)[count:]:
                del self._rows[i]
        self._order = None
        self.begin()

    def take(self, ids: Sequence[ClientId]) -> Columns:
        """Return the columns of some clients, in the order of ``ids``."""
        if self._order is None or self._order[0] is not ids:
            self._order = ids, np.array([self._rows[i] for i in ids], dtype=np.int64)
        return {name: column[self._order[1]] for name, column in self._columns.items()}

    def missing(self, ids: Sequence[ClientId]) -> list[ClientId]:
        """Return the clients without a score, in the order of ``ids``."""
        return [] if len(self._rows) == len(ids) else [i for i in ids if i not in self._rows]

    def to_json(self) -> Json:
        """Return the names of clients, and each column as base64 of little-endian doubles in the same order.

        A checkpoint holds the scores of all clients: as decimal numbers, these would take longer than a round.
        """
        columns = {name: column[: len(self._rows)].astype("<f8") for name, column in self._columns.items()}
        coded = {name: b64encode(column.tobytes()).decode() for name, column in columns.items()}
        return {"clients": list(self._rows), "columns": coded}

    @staticmethod
    def from_json(stored: Json) -> "ScoreTable":
        """Return the table that :meth:`to_json` described."""
        table = ScoreTable()
        if stored["clients"]:
            coded = stored["columns"].items()
            table.put(stored["clients"], {name: np.frombuffer(b64decode(text), "<f8") for name, text in coded})
        return table

    def __getitem__(self, i: ClientId) -> Score:
        return {name: float(column[self._rows[i]]) for name, column in self._columns.items()}

    def __contains__(self, i: object) -> bool:
        return i in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def _grow(self, columns: Columns) -> None:
        if len(self._rows) > self._room:
            self._room = max(2 * self._room, len(self._rows))
            for name, column in self._columns.items():
                self._columns[name] = np.append(column, np.full(self._room - len(column), np.nan))
        for name in columns:
            if name not in self._columns:
                self._columns[name] = np.full(self._room, np.nan)
