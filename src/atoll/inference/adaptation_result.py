"""Describe the result of an adaptation: scores and models of new clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from ..clients.measured_model import ModelSource
from ..core.criterion import Criterion
from ..typing import ClientId
from ..utils.notebook import dataframe, html
from ..utils.stats import Stat, spread
from .models import TrainedModels
from .new_clients import NewClientSetup, Plan, SourceRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("personal", "alone", "shared")


class Score(TypedDict):
    """Test scores of one new client after training on one draw of rows: a row of the table of an adaptation."""

    client: ClientId
    shots: str  # rows of each class, or "all"
    repeat: int
    rows: int  # training rows
    personal: float  # score of the personal model
    alone: float  # score of the model that is trained alone
    shared: float | None  # score of the server's model
    epochs_alone: int


def format_shots(shots: int | None) -> str:
    """Return the number of rows of each class as text; None stands for all rows."""
    return "all" if shots is None else str(shots)


class Point(NamedTuple):
    """Mean scores over new clients for one number of rows.

    Args:
        shots: rows of each class; None for all rows.
        rows: average number of rows of a new client.
        personal: score of personal models.
        alone: score of models that are trained alone.
        shared: score of the server's model, or None if the method has none.
    """

    shots: int | None
    rows: float
    personal: Stat
    alone: Stat
    shared: Stat | None

    @property
    def name(self) -> str:
        """Return the number of rows of each class as text."""
        return format_shots(self.shots)


class NewClients(TrainedModels):
    """The personal models of new clients.

    Args:
        source_run: the run that the new clients joined.
        new_clients: the new clients.
        source: returns the payloads that determine a new client's model.
    """

    def __init__(self, source_run: SourceRun, new_clients: NewClientSetup, source: Callable[[ClientId], ModelSource]):
        self.config = source_run.setup.config
        self.round = source_run.round
        self.model_round = source_run.round
        self._source = source
        self.method = new_clients.method
        self.pool = new_clients.pool
        self.federation = new_clients.federation
        self.transform = new_clients.transform
        self.preparations = new_clients.preparations

    def source(self, i: ClientId) -> ModelSource:
        return self._source(self.client(i))


@dataclass(frozen=True, repr=False)
class Adaptation:
    """Scores and models of new clients.

    Args:
        label: name of the run.
        plan: the request.
        table: one row for each new client, number of rows and repeat.
        models: models of the largest number of rows, in the first repeat.
        notes: sentences for the user.
    """

    label: str
    plan: Plan
    table: pa.Table
    models: NewClients
    notes: tuple[str, ...]

    @property
    def criterion(self) -> Criterion:
        """The score that the table holds."""
        return self.models.pool.problem.criterion

    @property
    def rows_title(self) -> str:
        """What numbers of rows count: rows of each class, or all rows where labels are no classes."""
        return "samples of each class" if self.models.pool.problem.num_classes else "samples to train on"

    def curve(self) -> list[Point]:
        """Return mean scores over new clients for each number of rows, with deviations over repeats."""
        return [_point(self.table, shots, self.plan.repeats) for shots in self.plan.shots]

    def to_table(self) -> pa.Table:
        """Return a table with one row for each new client, number of rows and repeat."""
        return self.table

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with one row for each new client, number of rows and repeat."""
        return dataframe(self.table)

    def plot(self) -> "Figure":
        """Draw the score by number of rows of each class."""
        from ..report.plots import few_shot  # imported here because matplotlib is slow to import

        return few_shot.curve(self.curve(), self.criterion, self.rows_title)

    def cells(self) -> list[list[str]]:
        """Return the curve as text: rows of each class, rows, and one column for each kind of model."""
        return [[p.name, f"{p.rows:.1f}", *(self._shown(getattr(p, kind)) for kind in KINDS)] for p in self.curve()]

    def __repr__(self) -> str:
        last, score = self.curve()[-1], self.criterion.format
        return (
            f"<Adaptation {self.label}: {len(self.models.clients)} new clients, personal {score(last.personal.mean)}, "
            f"alone {score(last.alone.mean)} with {last.name} {self.rows_title}>"
        )

    def _shown(self, stat: Stat | None) -> str:
        if stat is None:
            return "–"
        score = self.criterion
        return score.format(stat.mean) + (f" ± {score.digits(score.scale * stat.std)}" if stat.std is not None else "")

    def _repr_html_(self) -> str:
        return html(repr(self)[1:-1], (self.rows_title, "samples", *KINDS), self.cells())


def _point(table: pa.Table, shots: int | None, repeats: int) -> Point:
    rows = [row for row in table.to_pylist() if row["shots"] == format_shots(shots)]
    means: dict[str, Stat | None] = {}
    for kind in KINDS:
        each = [[row[kind] for row in rows if row["repeat"] == repeat] for repeat in range(repeats)]
        means[kind] = None if None in each[0] else spread([float(np.nanmean(values)) for values in each])
    personal, alone = means["personal"], means["alone"]
    assert personal is not None
    assert alone is not None
    return Point(shots, float(np.mean([row["rows"] for row in rows])), personal, alone, means["shared"])
