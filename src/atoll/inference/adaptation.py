"""Personal models for clients that come after a run, from what its server knows; the server stays as it is.

A newcomer is initialised as the method initialises any client, receives the message that a client would receive now,
and does a client's part of one round (or what the method's own rule for newcomers says). Its upload goes nowhere. It is
compared with a model that is trained alone on the same rows, by as many operations, and with the server's model.
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
from ..core.method import contract
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
PARTS = ("download", "upload", "state")  # what a personal model follows from

Watch = Callable[[int, int], None]  # told how many models of how many are done


class SourceRun(NamedTuple):
    """What a run has left."""

    setup: Setup
    server: Any
    round: int
    folder: Path | None  # None: it was never written down


class Point(NamedTuple):
    """Accuracies for one number of rows, means over newcomers; None: the method has no such model."""

    shots: int | None  # rows of each class; None: all
    rows: float  # of a newcomer, on average
    personal: Stat
    alone: Stat
    shared: Stat | None

    @property
    def name(self) -> str:
        return "all" if self.shots is None else str(self.shots)


class Newcomers(TrainedModels):
    """The personal models that newcomers have in the end."""

    def __init__(self, source_run: SourceRun, newcomers: NewcomerSetup, source: Callable[[ClientId], ModelSource]):
        self.config, self.round, self._source = source_run.setup.config, source_run.round, source
        self.method, self.pool, self.data = newcomers.method, newcomers.pool, newcomers.federation.dataset
        self.transform = newcomers.transform

    def source(self, i: ClientId) -> ModelSource:
        return self._source(self.client(i))


@dataclass(frozen=True, repr=False)
class Adaptation:
    """How newcomers fare, and their models: those of the last number of rows asked for, in the first repeat."""

    label: str
    plan: Plan
    table: pa.Table  # a row for each newcomer, number of rows and repeat
    models: Newcomers
    notes: tuple[str, ...]

    def curve(self) -> list[Point]:
        """Over newcomers; deviations are those of repeats."""
        return [_point(self.table, shots, self.plan.repeats) for shots in self.plan.shots]

    def to_table(self) -> pa.Table:
        return self.table

    def to_dataframe(self) -> Any:
        """The same for pandas."""
        return dataframe(self.table)

    def plot(self) -> "Figure":
        """Accuracy by rows of each class."""
        from ..report.plots import few_shot  # drawing takes long to import

        return few_shot.curve(self.curve())

    def cells(self) -> list[list[str]]:
        """The curve as text: rows of each class, rows, and a column for each kind of model."""
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
    """Personal models for clients with these data, or for those that stayed out of the run.

    ``shots`` are rows of each class, such as ``"1,5,all"``; rows and orders are drawn anew in each of ``repeats``.
    ``epochs`` and ``settings`` change the method for the newcomers alone. With ``out``, figures, numbers and models are
    written there.
    """
    source_run = _source_run(run)
    changes = dict(settings or {}) | ({} if epochs is None else {_passes(source_run.setup): epochs})
    named = data if isinstance(data, str) else None
    plan = Plan(named, partition, clients, model, changes, read_shots(shots), repeats, seed)
    if repeats < 1:
        raise AtollError(f"--repeats must be at least 1, not {repeats}.")
    with one_thread(), on_device(source_run.setup.config.device):
        newcomers = setup_newcomers(source_run.setup, plan, data if isinstance(data, Dataset) else None)
        rows, kept = _measured(source_run, newcomers, plan, watch or (lambda done, total: None))
    models = Newcomers(source_run, newcomers, kept.__getitem__)
    table = pa.Table.from_pylist(rows)
    made = Adaptation(source_run.setup.config.label, plan, table, models, newcomers.notes)
    if out is not None:
        anonymous = isinstance(data, Dataset) or source_run.folder is None
        _write(made, Path(out), None if anonymous else source_run.folder, newcomers.federation.name)
    return made


def read_shots(text: str | int | Sequence[int | str]) -> tuple[int | None, ...]:
    """``"1,5,all"`` as (1, 5, None), in this order and each once."""
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


def _passes(setup: Setup) -> str:
    """The setting that says how long a newcomer trains."""
    return "adapt_epochs" if setup.method.adapt else "optim.epochs"


# -- the work ---------------------------------------------------------------------------------------------------------


def _measured(
    source_run: SourceRun, newcomers: NewcomerSetup, plan: Plan, watch: Watch
) -> tuple[list[dict[str, Any]], dict[ClientId, ModelSource]]:
    """A row for each model, and what the last models follow from."""
    pool, method, seed = newcomers.pool, newcomers.method, plan.seed
    generic = method.generic(source_run.server, source_run.setup.pool.task())
    rows: list[dict[str, Any]] = []
    kept: dict[ClientId, ModelSource] = {}
    total = len(pool.ids) * len(plan.shots) * plan.repeats
    for i in pool.ids:
        shared = None if generic is None else _score(generic, pool, i)
        for shots, repeat, client in _cut(pool.client(i), i, plan):
            k = key(seed, "adapt", repeat, i)
            with OperationCounter() as work:
                source = personalised(source_run, newcomers, i, client, k)
            if shots == plan.shots[-1] and repeat == 0:
                kept[i] = source
            alone, epochs = _alone(method, client, k, work.total)
            scores = {"personal": _score(method.personal(*source), pool, i), "alone": _score(alone, pool, i)}
            what = {"client": i, "shots": "all" if shots is None else str(shots), "repeat": repeat}
            rows.append({**what, "rows": len(client.y), **scores, "shared": shared, "epochs_alone": epochs})
            watch(len(rows), total)
    return rows, kept


def personalised(source_run: SourceRun, newcomers: NewcomerSetup, i: ClientId, client: Client, k: Key) -> ModelSource:
    """A newcomer after its part in a round; what the server does for it alone is done on a desk that is not kept."""
    method, server, task = newcomers.method, source_run.server, newcomers.task
    server_side = ServerSideStates(method, task, source_run.setup.config.seed, MemoryStore())
    down, up = server_side.download(server, i, Round(source_run.round)), None
    with torch.no_grad():
        if method.adapt:
            return down, None, to_contiguous(method_calls.adapt(method, server, client, k)), client
        state = method_calls.init_client(method, client, key(source_run.setup.config.seed, "init", i))
        for r in (Round(source_run.round, phase) for phase in range(method.phases)):
            if up is not None:
                list(server_side.serve_replies(server, iter([Reply(i, up)]), Round(source_run.round, r.phase - 1)))
                down = server_side.download(server, i, r)
            part = take_part(method, down, state, client, k)
            up, state = part.upload, part.finish()
    return down, up, state, client


def _alone(method: Any, client: Client, k: Key, work: int) -> tuple[Predictor, int]:
    """The same architecture from its first weights on the same rows, for as many passes as cost the same."""
    alone = Local(replace(getattr(method, "optim", SGD()), epochs=1))
    nothing = alone.init_server(None, k)  # type: ignore[arg-type]
    first = alone.init_client(client, k)
    with torch.no_grad(), OperationCounter() as one:
        alone.local(nothing, first, client, k)
    epochs = max(1, round(work / one.total))
    alone = Local(replace(alone.optim, epochs=epochs))
    with torch.no_grad():
        _, state = alone.local(nothing, first, client, k)
    return alone.personal(nothing, None, state, client), epochs


def _cut(client: Client, i: ClientId, plan: Plan) -> Iterator[tuple[int | None, int, Client]]:
    """The newcomer with fewer rows: in one repeat, the rows of a smaller number are among those of a larger one."""
    for repeat in range(plan.repeats):
        order = stream(plan.seed, "shots", i, str(repeat)).permutation(len(client.y))
        for shots in plan.shots:
            rows = _first_of_each(client.y.cpu()[torch.from_numpy(order)], order, shots)
            yield shots, repeat, replace_rows(client, client.x[rows], client.y[rows])


def _last_cut(client: Client, i: ClientId, plan: Plan) -> Client:
    """The newcomer with the rows that the model which is kept has learnt from."""
    return next(cut for shots, repeat, cut in _cut(client, i, plan) if shots == plan.shots[-1] and repeat == 0)


def _first_of_each(y: Tensor, order: Any, shots: int | None) -> Tensor:
    """The first rows of each class in this order, given back in the order they have at home."""
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
    """Numbers and curve; and the models, if run and data have names by which they are found again."""
    from ..report.style import save  # drawing takes long to import

    folder.mkdir(parents=True, exist_ok=True)
    if run is not None:
        for i in made.models.clients:
            _keep(made.models.source(i), _place(folder, i))
    figure = made.plot()
    for suffix in ("png", "svg"):
        save(figure, folder / f"adapt.{suffix}")
    with pa.BufferOutputStream() as text:
        pa.csv.write_csv(made.table, text)
        write_whole(folder / "adapt.csv", text.getvalue().to_pybytes())
    write_whole(folder / NAME, (to_json(document(made, folder, run, federation), indent=1) + "\n").encode())


def document(made: Adaptation, folder: Path | None = None, run: Path | None = None, federation: str = "") -> Any:
    """What adapt.json holds."""
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


def _place(folder: Path, i: ClientId) -> Path:
    return folder / "models" / quote(i, safe="").replace(".", "%2E")


def _keep(source: ModelSource, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for part, value in zip(PARTS, source[:3], strict=True):
        path = place / f"{part}.safetensors"
        path.unlink(missing_ok=True)
        if value is not None:
            write_whole(path, encode(value))


def open_adapted(folder: Path) -> Newcomers:
    """The models of newcomers as ``adapt`` wrote them; the run and the data have to be where they were."""
    try:
        told = json.loads((folder / NAME).read_bytes())
        run, values = told["run"], told["plan"]
        plan = Plan(**{**values, "shots": tuple(values["shots"])})
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise AtollError(f"{str(folder / NAME)!r} is damaged ({reason!r}). Run `atoll adapt` again.") from reason
    if run is None:
        raise AtollError(f"{str(folder)!r} holds no models: the run, or the newcomers' data, were only in memory.")
    source_run = _source_run(folder / run)
    newcomers = setup_newcomers(source_run.setup, plan)
    if newcomers.federation.name != told["federation"] or source_run.round != told["round"]:
        raise AtollError(f"The run or the data of {str(folder)!r} have changed. Run `atoll adapt` again.")
    types = contract(newcomers.method)
    kinds = (types.download, types.upload, types.state)

    def source(i: ClientId) -> ModelSource:
        files = [_place(folder, i) / f"{part}.safetensors" for part in PARTS]
        down, up, state = (
            decode(kind, path.read_bytes(), OWN) if path.exists() else None
            for kind, path in zip(kinds, files, strict=True)
        )
        return down, up, state, _last_cut(newcomers.pool.client(i), i, plan)

    return Newcomers(source_run, newcomers, source)
