"""Train personal models for clients that join after a run. The server's state does not change.

A newcomer is initialised like any client of the method, receives the server's current message, and does the work of one
round (or follows the method's own rule for newcomers). Its upload is discarded. Its model is compared with a model that
is trained alone on the same rows, with the same number of operations, and with the server's model.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from torch import Tensor

from ..clients import method_calls
from ..clients.evaluation import accuracy, predict
from ..clients.participation import take_part
from ..clients.pool import replace_rows
from ..clients.server_side import ServerSideStates
from ..clients.state_store import MemoryStore
from ..core.client import Client
from ..core.contract import contract, exchanges_of
from ..core.hooks import AdaptsNewClients, HasOptimiser
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.optim.sgd import SGD
from ..core.prng import Key, key
from ..core.serialization import OWN, decode, encode
from ..core.task import Reply, Round
from ..core.tree import to_contiguous
from ..data.dataset import Dataset
from ..data.seeding import stream
from ..engine.result import Result
from ..engine.setup import Setup
from ..errors import AtollError
from ..methods.local import Local
from ..simulation.costs import OperationCounter
from ..typing import ClientId
from ..utils.files import to_json, write_whole
from ..utils.notebook import dataframe, html
from ..utils.runtime import on_device, one_thread
from ..utils.stats import Stat, spread
from .models import ModelSource, SavedRun, TrainedModels, open_run
from .newcomers import NewcomerSetup, Plan, setup_newcomers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "adapt.json"
KINDS = ("personal", "alone", "shared")
PARTS = ("download", "upload", "state")  # payloads that determine a personal model

Watch = Callable[[int, int], None]  # called with the number of finished models and of all models


class SourceRun(NamedTuple):
    """A finished run that newcomers join.

    Args:
        setup: configuration, method, data and clients.
        server: the server's final state.
        round: number of rounds.
        folder: the run directory, or None for a run in memory.
    """

    setup: Setup
    server: Any
    round: int
    folder: Path | None


class Point(NamedTuple):
    """Mean accuracies over newcomers for one number of rows.

    Args:
        shots: rows of each class; None for all rows.
        rows: average number of rows of a newcomer.
        personal: accuracy of personal models.
        alone: accuracy of models that are trained alone.
        shared: accuracy of the server's model, or None if the method has none.
    """

    shots: int | None
    rows: float
    personal: Stat
    alone: Stat
    shared: Stat | None

    @property
    def name(self) -> str:
        """Return the number of rows of each class as text."""
        return "all" if self.shots is None else str(self.shots)


class Newcomers(TrainedModels):
    """The personal models of newcomers.

    Args:
        source_run: the run that the newcomers joined.
        newcomers: the newcomers.
        source: returns the payloads that determine a newcomer's model.
    """

    def __init__(self, source_run: SourceRun, newcomers: NewcomerSetup, source: Callable[[ClientId], ModelSource]):
        self.config = source_run.setup.config
        self.round = source_run.round
        self._source = source
        self.method = newcomers.method
        self.pool = newcomers.pool
        self.data = newcomers.federation.dataset
        self.transform = newcomers.transform

    def source(self, i: ClientId) -> ModelSource:
        return self._source(self.client(i))


@dataclass(frozen=True, repr=False)
class Adaptation:
    """Accuracies and models of newcomers.

    Args:
        label: name of the run.
        plan: the request.
        table: one row for each newcomer, number of rows and repeat.
        models: models of the largest number of rows, in the first repeat.
        notes: sentences for the user.
    """

    label: str
    plan: Plan
    table: pa.Table
    models: Newcomers
    notes: tuple[str, ...]

    def curve(self) -> list[Point]:
        """Return mean accuracies over newcomers for each number of rows, with deviations over repeats."""
        return [_point(self.table, shots, self.plan.repeats) for shots in self.plan.shots]

    def to_table(self) -> pa.Table:
        """Return a table with one row for each newcomer, number of rows and repeat."""
        return self.table

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with one row for each newcomer, number of rows and repeat."""
        return dataframe(self.table)

    def plot(self) -> "Figure":
        """Draw the accuracy by number of rows of each class."""
        from ..report.plots import few_shot  # imported here because matplotlib is slow to import

        return few_shot.curve(self.curve())

    def cells(self) -> list[list[str]]:
        """Return the curve as text: rows of each class, rows, and one column for each kind of model."""
        return [[p.name, f"{p.rows:.1f}", *(_percent(getattr(p, kind)) for kind in KINDS)] for p in self.curve()]

    def __repr__(self) -> str:
        last = self.curve()[-1]
        return (
            f"<Adaptation {self.label}: {len(self.models.clients)} newcomers, personal {last.personal.mean:.2%}, "
            f"alone {last.alone.mean:.2%} with {last.name} rows of each class>"
        )

    def _repr_html_(self) -> str:
        return html(repr(self)[1:-1], ("rows of each class", "rows", *KINDS), self.cells())


def adapt(
    run: "str | Path | Result | SavedRun",
    data: str | Dataset | None = None,
    *,
    shots: str | int | Sequence[int | str] = "all",
    repeats: int = 1,
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Adaptation:
    """Train personal models for new clients.

    Example:
        >>> adaptation = atoll.adapt("runs/fedavg", shots="1,5,all", repeats=3)
        >>> adaptation.to_dataframe()

    Args:
        run: a run directory, a result, or an opened run.
        data: data of the newcomers. By default those of the clients that ``newcomers`` held out of the run.
        shots: rows of each class, such as ``"1,5,all"``.
        repeats: how often rows and their order are drawn.
        epochs: passes over the newcomers' rows, in place of the method's setting.
        settings: further settings of the method, for the newcomers alone.
        model: architecture of the newcomers, one of the run's.
        partition: partition of ``data`` into newcomers.
        clients: number of newcomers in ``data``.
        seed: seed of the newcomers' rows and training.
        out: folder for figures, tables and models; None writes nothing.
        watch: called after each model.

    Raises:
        AtollError: an option is wrong, the data do not fit the run, or the method cannot serve new clients.
    """
    source_run = _source_run(run)
    changes = dict(settings or {}) | ({} if epochs is None else {_epochs_setting(source_run.setup): epochs})
    named = data if isinstance(data, str) else None
    plan = Plan(named, partition, clients, model, changes, read_shots(shots), repeats, seed)
    if repeats < 1:
        raise AtollError(f"--repeats must be at least 1, not {repeats}.")
    with one_thread(), on_device(source_run.setup.config.device):
        newcomers = setup_newcomers(source_run.setup, plan, data if isinstance(data, Dataset) else None)
        rows, kept = _train_and_score(source_run, newcomers, plan, watch or (lambda done, total: None))
    models = Newcomers(source_run, newcomers, kept.__getitem__)
    table = pa.Table.from_pylist(rows)
    made = Adaptation(source_run.setup.config.label, plan, table, models, newcomers.notes)
    if out is not None:
        anonymous = isinstance(data, Dataset) or source_run.folder is None
        _write(made, Path(out), None if anonymous else source_run.folder, newcomers.federation.name)
    return made


def read_shots(text: str | int | Sequence[int | str]) -> tuple[int | None, ...]:
    """Read ``"1,5,all"`` as (1, 5, None), sorted and without repetitions."""
    words = text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text
    try:
        found = {None if word == "all" else int(word) for word in words}
        if not found or any(n is not None and n < 1 for n in found):
            raise ValueError
    except ValueError:
        raise AtollError(f"--shots wants numbers of rows from 1 on, or all, such as 1,5,all; not {text!r}.") from None
    return tuple(sorted(found, key=lambda n: math.inf if n is None else n))


def _source_run(run: "str | Path | Result | SavedRun") -> SourceRun:
    if isinstance(run, Result):
        folder = run.setup.config.out
        return SourceRun(run.setup, run.server, run.summary["rounds"], None if folder is None else Path(folder))
    saved = run if isinstance(run, SavedRun) else open_run(run)
    return SourceRun(saved.setup, saved.server, saved.round, saved.path)


def _epochs_setting(setup: Setup) -> str:
    """Return the name of the setting for the number of a newcomer's epochs."""
    return "adapt_epochs" if isinstance(setup.method, AdaptsNewClients) else "optim.epochs"


# -- the work ---------------------------------------------------------------------------------------------------------


def _train_and_score(
    source_run: SourceRun, newcomers: NewcomerSetup, plan: Plan, watch: Watch
) -> tuple[list[dict[str, Any]], dict[ClientId, ModelSource]]:
    """Train and score all models; return a row for each, and the payloads behind the last models."""
    pool, method, seed = newcomers.pool, newcomers.method, plan.seed
    generic = method_calls.generic_predictor(method, source_run.server, source_run.setup.pool.task())
    rows: list[dict[str, Any]] = []
    kept: dict[ClientId, ModelSource] = {}
    total = len(pool.ids) * len(plan.shots) * plan.repeats
    for i in pool.ids:
        shared = None if generic is None else _score(generic, pool, i)
        for shots, repeat, client in _cut_rows(pool.client(i), i, plan):
            k = key(seed, "adapt", repeat, i)
            with OperationCounter() as work:
                source = personalise(source_run, newcomers, i, client, k)
            if shots == plan.shots[-1] and repeat == 0:
                kept[i] = source
            alone, epochs = _train_alone(method, client, k, work.total)
            scores = {
                "personal": _score(method_calls.personal_predictor(method, *source), pool, i),
                "alone": _score(alone, pool, i),
            }
            what = {"client": i, "shots": "all" if shots is None else str(shots), "repeat": repeat}
            rows.append({**what, "rows": len(client.y), **scores, "shared": shared, "epochs_alone": epochs})
            watch(len(rows), total)
    return rows, kept


def personalise(source_run: SourceRun, newcomers: NewcomerSetup, i: ClientId, client: Client, k: Key) -> ModelSource:
    """Train the personal model of a newcomer. The server's state for the newcomer is discarded afterwards."""
    method, server, task = newcomers.method, source_run.server, newcomers.task
    server_side = ServerSideStates(method, task, source_run.setup.config.seed, MemoryStore())
    down, up = server_side.download(server, i, Round(source_run.round)), None
    with torch.no_grad():
        if isinstance(method, AdaptsNewClients):
            return down, None, to_contiguous(method_calls.adapt(method, server, client, k)), client
        state = method_calls.init_client(method, client, key(source_run.setup.config.seed, "init", i))
        for r in (Round(source_run.round, at) for at in range(len(exchanges_of(method)))):
            if up is not None:
                list(server_side.serve_replies(server, iter([Reply(i, up)]), Round(source_run.round, r.exchange - 1)))
                down = server_side.download(server, i, r)
            part = take_part(method, r, down, state, client, k)
            up, state = part.upload, part.finish()
    return down, up, state, client


def _train_alone(method: AnyMethod, client: Client, k: Key, work: int) -> tuple[Predictor, int]:
    """Train the same architecture alone on the same rows, with about ``work`` operations; return it and its epochs."""
    optim = method.optim if isinstance(method, HasOptimiser) else SGD()
    alone = Local(replace(optim, epochs=1))
    nothing = alone.init_server(None, k)  # type: ignore[arg-type]
    first = alone.init_client(client, k)
    with torch.no_grad(), OperationCounter() as one:
        alone.client_update(nothing, first, client, Round(0), k)
    epochs = max(1, round(work / one.total))
    alone = Local(replace(alone.optim, epochs=epochs))
    with torch.no_grad():
        _, state = alone.client_update(nothing, first, client, Round(0), k)
    return client.predictor(state.params), epochs


def _cut_rows(client: Client, i: ClientId, plan: Plan) -> Iterator[tuple[int | None, int, Client]]:
    """Yield the newcomer with each number of rows. In one repeat, smaller sets of rows are subsets of larger ones."""
    for repeat in range(plan.repeats):
        order = stream(plan.seed, "shots", i, str(repeat)).permutation(len(client.y))
        for shots in plan.shots:
            rows = _first_of_each(client.y.cpu()[torch.from_numpy(order)], order, shots)
            yield shots, repeat, replace_rows(client, client.x[rows], client.y[rows])


def _last_cut(client: Client, i: ClientId, plan: Plan) -> Client:
    """Return the newcomer with the training rows of its final model."""
    return next(cut for shots, repeat, cut in _cut_rows(client, i, plan) if shots == plan.shots[-1] and repeat == 0)


def _first_of_each(y: Tensor, order: Any, shots: int | None) -> Tensor:
    """Return the first ``shots`` rows of each class by ``order``, sorted by position."""
    labels = y.numpy()
    place = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of = np.flatnonzero(labels == label)
        place[of] = np.arange(len(of))
    return torch.from_numpy(np.sort(order[place < (math.inf if shots is None else shots)]))


def _score(predictor: Predictor, pool: Any, i: ClientId) -> float:
    test = pool.test[pool.position(i)]
    return accuracy(predict(predictor, test.x), test.y)


def _point(table: pa.Table, shots: int | None, repeats: int) -> Point:
    name = "all" if shots is None else str(shots)
    rows = [row for row in table.to_pylist() if row["shots"] == name]
    means: dict[str, Stat | None] = {}
    for kind in KINDS:
        each = [[row[kind] for row in rows if row["repeat"] == repeat] for repeat in range(repeats)]
        means[kind] = None if None in each[0] else spread([float(np.nanmean(values)) for values in each])
    personal, alone = means["personal"], means["alone"]
    assert personal is not None
    assert alone is not None
    return Point(shots, float(np.mean([row["rows"] for row in rows])), personal, alone, means["shared"])


def _percent(stat: Stat | None) -> str:
    if stat is None:
        return "–"
    return f"{stat.mean:.2%}" + (f" ± {100 * stat.std:.2f}" if stat.std is not None else "")


# -- on disk ----------------------------------------------------------------------------------------------------------


def _write(made: Adaptation, folder: Path, run: Path | None, federation: str) -> None:
    """Write table and figure, and the models if the run and the data can be opened again by name."""
    from ..report.style import save  # imported here because matplotlib is slow to import

    folder.mkdir(parents=True, exist_ok=True)
    if run is not None:
        for i in made.models.clients:
            _write_source(made.models.source(i), _model_folder(folder, i))
    figure = made.plot()
    for suffix in ("png", "svg"):
        save(figure, folder / f"adapt.{suffix}")
    with pa.BufferOutputStream() as text:
        pa.csv.write_csv(made.table, text)
        write_whole(folder / "adapt.csv", text.getvalue().to_pybytes())
    write_whole(folder / NAME, (to_json(to_document(made, folder, run, federation), indent=1) + "\n").encode())


def to_document(made: Adaptation, folder: Path | None = None, run: Path | None = None, federation: str = "") -> Any:
    """Return the content of adapt.json."""
    return {
        "run": None if run is None or folder is None else os.path.relpath(run, folder),
        "label": made.label,
        "round": made.models.round,
        "plan": asdict(made.plan),
        "newcomers": list(made.models.clients),
        "federation": federation,
        "curve": [_as_dict(point) for point in made.curve()],
        "models": made.table.to_pylist(),
        "notes": list(made.notes),
    }


def _as_dict(point: Point) -> dict[str, Any]:
    stats = {kind: getattr(point, kind) for kind in KINDS}
    return {"shots": point.name, "rows": point.rows} | {
        kind: None if stat is None else stat._asdict() for kind, stat in stats.items()
    }


def _model_folder(folder: Path, i: ClientId) -> Path:
    return folder / "models" / quote(i, safe="").replace(".", "%2E")


def _write_source(source: ModelSource, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for part, value in zip(PARTS, source[:3], strict=True):
        path = place / f"{part}.safetensors"
        path.unlink(missing_ok=True)
        if value is not None:
            write_whole(path, encode(value))


def open_adapted(folder: Path) -> Newcomers:
    """Open the models that ``adapt`` wrote to a folder. Run and data must be at their former paths."""
    try:
        stored = json.loads((folder / NAME).read_bytes())
        run, values = stored["run"], stored["plan"]
        plan = Plan(**{**values, "shots": tuple(values["shots"])})
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise AtollError(f"{str(folder / NAME)!r} is damaged ({reason!r}). Run `atoll adapt` again.") from reason
    if run is None:
        raise AtollError(f"{str(folder)!r} holds no models: the run, or the newcomers' data, were only in memory.")
    source_run = _source_run(folder / run)
    newcomers = setup_newcomers(source_run.setup, plan)
    if newcomers.federation.name != stored["federation"] or source_run.round != stored["round"]:
        raise AtollError(f"The run or the data of {str(folder)!r} have changed. Run `atoll adapt` again.")
    types = contract(newcomers.method)
    last = types.exchanges[-1]
    kinds = (last.download, last.upload, types.state)

    def source(i: ClientId) -> ModelSource:
        files = [_model_folder(folder, i) / f"{part}.safetensors" for part in PARTS]
        down, up, state = (
            decode(kind, path.read_bytes(), OWN) if path.exists() else None
            for kind, path in zip(kinds, files, strict=True)
        )
        return down, up, state, _last_cut(newcomers.pool.client(i), i, plan)

    return Newcomers(source_run, newcomers, source)
