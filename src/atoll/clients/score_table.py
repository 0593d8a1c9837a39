"""Hold the latest scores of clients as columns: an array for each score, with an entry for each client.

Scores may be pending: a model is kept in place of its score until scores are read, so that the models of many rounds
are evaluated together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from ..core.group_scores import Columns
from ..core.payloads import Params
from ..typing import ClientId
from .evaluation import Score

PENDING_BYTES = 2**26  # weights of models that are kept in place of their scores


class ClientModel(NamedTuple):
    """A client, and the weights of its personal model."""

    client: ClientId
    params: Params


class PendingScore(NamedTuple):
    """A personal model that is to be scored.

    Args:
        model: the client and its model.
        evaluate: scores several models, in their order. Models with the same function are scored together.
    """

    model: ClientModel
    evaluate: Callable[[Sequence[ClientModel]], Columns]


class _Change(NamedTuple):
    """The entries of a table before a change: number of clients, and values of the clients that changed."""

    clients: int
    rows: NDArray[np.int64]
    values: Columns
    pending: Mapping[ClientId, PendingScore | None]


def to_columns(scores: Iterable[Mapping[str, float]]) -> Columns:
    """Return the scores of several clients as columns. A score that a client lacks is NaN."""
    each = list(scores)
    names = dict.fromkeys(name for score in each for name in score)
    return {name: np.array([score.get(name, np.nan) for score in each], dtype=np.float64) for name in names}


def to_scores(columns: Columns) -> list[Score]:
    """Return columns as one score for each client."""
    names, lists = list(columns), [column.tolist() for column in columns.values()]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def settled(score: Score | PendingScore | None) -> Score | None:
    """Return a score, computed now if it was pending."""
    return to_scores(score.evaluate([score.model]))[0] if isinstance(score, PendingScore) else score


class ScoreTable:
    """The latest score of each client that was scored. Clients keep the order in which they came.

    Changes since :meth:`begin` can be undone, at a cost that grows with the changes and not with the clients.
    """

    def __init__(self, scores: Mapping[ClientId, Mapping[str, float]] | None = None) -> None:
        self._rows: dict[ClientId, int] = {}
        self._columns: Columns = {}
        self._room = 0  # length of the columns
        self._pending: dict[ClientId, PendingScore] = {}  # clients whose columns are not up to date
        self._pending_bytes: dict[int, int] = {}  # bytes of their weights by address, since models may share memory
        self._undo: list[_Change] = []
        self._order: tuple[Sequence[ClientId], NDArray[np.int64]] | None = None  # rows of the clients asked for last
        self.update(scores or {})

    def update(self, scores: Mapping[ClientId, Mapping[str, float] | PendingScore]) -> None:
        """Put the scores of some clients in the place of their last ones."""
        known = {i: score for i, score in scores.items() if not isinstance(score, PendingScore)}
        pending = {i: score for i, score in scores.items() if isinstance(score, PendingScore)}
        if known:
            self.put(list(known), to_columns(known.values()))
        if pending:
            self._change(list(pending), {}, pending)
            weights = (v.untyped_storage() for score in pending.values() for v in score.model.params.values())
            self._pending_bytes |= {storage.data_ptr(): storage.nbytes() for storage in weights}
            if sum(self._pending_bytes.values()) > PENDING_BYTES:
                self.settle()

    def put(self, ids: Sequence[ClientId], columns: Columns) -> None:
        """Put the scores of some clients, as columns in the order of ``ids``, in the place of their last ones."""
        rows = self._change(ids, columns, {})
        for name, column in self._columns.items():
            column[rows] = columns.get(name, np.nan)

    def settle(self) -> None:
        """Compute the scores that are pending."""
        together = defaultdict[int, list[PendingScore]](list)
        for score in self._pending.values():
            together[id(score.evaluate)].append(score)
        for scores in together.values():
            models = [score.model for score in scores]
            self.put([model.client for model in models], scores[0].evaluate(models))
        self._pending_bytes = {}

    def _change(
        self, ids: Sequence[ClientId], columns: Columns, pending: Mapping[ClientId, PendingScore]
    ) -> NDArray[np.int64]:
        """Make room for scores, remember how to undo their change, and return the rows of the clients."""
        count = len(self._rows)
        rows = np.array([self._rows.setdefault(i, len(self._rows)) for i in ids], dtype=np.int64)
        self._grow(columns)
        values = {name: column[rows] for name, column in self._columns.items()}
        self._undo.append(_Change(count, rows, values, {i: self._pending.get(i) for i in ids}))
        for i in ids:
            self._pending.pop(i, None)
        self._pending |= pending
        return rows

    def begin(self) -> None:
        """Forget how to undo earlier changes."""
        self._undo = []

    def undo(self) -> None:
        """Undo all changes since :meth:`begin`."""
        for count, rows, values, pending in reversed(self._undo):
            for name, column in self._columns.items():
                column[rows] = values.get(name, np.nan)
            for i, score in pending.items():
                self._pending.pop(i, None)
                self._pending |= {} if score is None else {i: score}
            for i in list(self._rows)[count:]:
                del self._rows[i]
        self._order = None
        self.begin()

    def take(self, ids: Sequence[ClientId]) -> Columns:
        """Return the columns of some clients, in the order of ``ids``."""
        self.settle()
        if self._order is None or self._order[0] is not ids:
            self._order = ids, np.array([self._rows[i] for i in ids], dtype=np.int64)
        return {name: column[self._order[1]] for name, column in self._columns.items()}

    def missing(self, ids: Sequence[ClientId]) -> list[ClientId]:
        """Return the clients without a score, in the order of ``ids``."""
        return [] if len(self._rows) == len(ids) else [i for i in ids if i not in self._rows]

    def clients(self) -> list[ClientId]:
        """Return the clients with a score, in the order in which they came."""
        return list(self._rows)

    def columns(self) -> Columns:
        """Return all scores, in the order of :meth:`clients`."""
        self.settle()
        return {name: column[: len(self._rows)] for name, column in self._columns.items()}

    @staticmethod
    def restore(clients: Sequence[ClientId], columns: Columns) -> "ScoreTable":
        """Return the table with these clients and columns."""
        table = ScoreTable()
        if clients:
            table.put(clients, columns)
        return table

    def __getitem__(self, i: ClientId) -> Score:
        if i in self._pending:
            self.settle()
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


def encode_columns(tables: Mapping[str, Columns]) -> bytes:
    """Return the columns of several tables as a safetensors file, by name of the table and of the column.

    A checkpoint holds the scores of all clients: as JSON, these would take longer than a round.
    """
    return safetensors.numpy.save({f"{of}/{name}": v for of, columns in tables.items() for name, v in columns.items()})


def decode_columns(data: bytes) -> dict[str, Columns]:
    """Return the tables that :func:`encode_columns` was given, without those that had no columns.

    Raises:
        ValueError: the bytes are no safetensors file.
    """
    try:
        found = safetensors.numpy.load(data)
    except safetensors.SafetensorError as reason:
        raise ValueError(f"scores are damaged: {reason}") from None
    tables: dict[str, Columns] = {}
    for path, column in found.items():
        of, _, name = path.partition("/")
        tables.setdefault(of, {})[name] = column
    return tables
