"""Train personal models for clients that join after a run. The server's state does not change.

A new client is initialised like any client of the method, receives the server's current message, and does the work of
one round (or follows the method's own rule for new clients). Its upload is discarded. Its model is compared with one
that is trained alone on the same rows, with the same number of operations, and with the server's model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import torch

from ..clients import method_calls
from ..clients.evaluation import predict
from ..clients.measured_model import ModelSource
from ..clients.participation import take_part
from ..clients.pool import ClientPool
from ..clients.server_side import ServerSideStates
from ..clients.state_store import MemoryStore
from ..core.client import Client
from ..core.contract import exchanges_of
from ..core.hooks import AdaptsNewClients, HasOptimiser
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.optim.sgd import SGD
from ..core.prng import Key, key
from ..core.task import Reply, Round
from ..core.tree import to_contiguous
from ..data.dataset import Dataset
from ..engine.result import Result
from ..engine.setup import Setup
from ..errors import AtollError
from ..methods.local import Local
from ..simulation.operations import OperationCounter
from ..typing import ClientId
from ..utils.runtime import on_device, one_thread, plain_torch
from .adaptation_files import check_free_for_adaptation, write_adaptation
from .adaptation_result import Adaptation, NewClients, Score, format_shots
from .models import SavedRun
from .new_clients import NewClientSetup, Plan, SourceRun, cut_rows, find_source_run, setup_new_clients

Watch = Callable[[int, int], None]  # called with the number of finished models and of all models


def adapt(
    run: str | Path | Result | SavedRun,
    data: str | Dataset | None = None,
    *,
    shots: str | int | Sequence[int | str] = "all",
    repeats: int = 1,
    epochs: float | None = None,
    settings: Mapping[str, object] | None = None,
    model: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    watch: Watch | None = None,
) -> Adaptation:
    """Train personal models for new clients.

    Example:
        >>> adaptation = atoll.adapt("runs/fedavg", shots="1,5,all", repeats=3)
        >>> adaptation.to_dataframe()

    Args:
        run: a run directory, a result, or an opened run.
        data: data of the new clients. By default those of the clients that ``new_clients`` held out of the run.
        shots: rows of each class, such as ``"1,5,all"``.
        repeats: how often rows and their order are drawn.
        epochs: passes over the new clients' rows, in place of the method's setting.
        settings: further settings of the method, for the new clients alone.
        model: architecture of the new clients, one of the run's.
        partition: partition of ``data`` into new clients.
        clients: number of new clients in ``data``.
        seed: seed of the new clients' rows and training.
        out: folder for figures, tables and models; None writes nothing.
        force: replace the new clients that are in ``out``.
        watch: called after each model.

    Raises:
        AtollError: an option is wrong, the data do not fit the run, or the method cannot serve new clients.
    """
    if out is not None:
        check_free_for_adaptation(Path(out), force)
    source_run = find_source_run(run)
    changes = dict(settings or {}) | ({} if epochs is None else _epochs_settings(source_run.setup, epochs))
    named = data if isinstance(data, str) else None
    plan = Plan(named, partition, clients, model, changes, read_shots(shots), repeats, seed)
    if repeats < 1:
        raise AtollError(f"--repeats must be at least 1, not {repeats}.")
    with plain_torch(), one_thread(), on_device(source_run.setup.config.device):
        new_clients = setup_new_clients(source_run.setup, plan, data if isinstance(data, Dataset) else None)
        rows, kept = _train_and_score(source_run, new_clients, plan, watch or (lambda done, total: None))
    models = NewClients(source_run, new_clients, kept.__getitem__)
    result = Adaptation(source_run.setup.config.label, plan, pa.Table.from_pylist(rows), models, new_clients.notes)
    if out is not None:
        anonymous = isinstance(data, Dataset) or source_run.folder is None
        write_adaptation(result, Path(out), None if anonymous else source_run.folder, new_clients.federation.name)
    return result


def read_shots(text: str | int | Sequence[int | str]) -> tuple[int | None, ...]:
    """Read ``"1,5,all"`` as (1, 5, None), sorted and without repetitions."""
    words = text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text
    try:
        found = {None if word == "all" else int(word) for word in words}
        if not found or any(n is not None and n < 1 for n in found):
            raise ValueError
    except ValueError:
        raise AtollError(
            f"--shots wants numbers of samples from 1 on, or all, such as 1,5,all; not {text!r}."
        ) from None
    return tuple(sorted(found, key=lambda n: math.inf if n is None else n))


def _epochs_settings(setup: Setup, epochs: float) -> dict[str, object]:
    """Return the settings for the number of a new client's epochs, by name."""
    if isinstance(setup.method, AdaptsNewClients):
        return {"adapt_epochs": epochs}
    by_steps = isinstance(setup.method, HasOptimiser) and setup.method.optim.steps is not None
    return {"optim.epochs": epochs} | ({"optim.steps": None} if by_steps else {})


# -- training ---------------------------------------------------------------------------------------------------------


def _train_and_score(
    source_run: SourceRun, new_clients: NewClientSetup, plan: Plan, watch: Watch
) -> tuple[list[Score], dict[ClientId, ModelSource]]:
    """Train and score all models; return a row for each, and the payloads behind the last models."""
    pool, method, seed = new_clients.pool, new_clients.method, plan.seed
    generic = method_calls.generic_predictor(method, source_run.server, source_run.setup.pool.task())
    rows: list[Score] = []
    kept: dict[ClientId, ModelSource] = {}
    total = len(pool.ids) * len(plan.shots) * plan.repeats
    for i in pool.ids:
        shared = None if generic is None else _score(generic, pool, i)
        for shots, repeat, client in cut_rows(pool.client(i), i, plan):
            k = key(seed, "adapt", repeat, i)
            with OperationCounter() as work:
                source = personalise(source_run, new_clients, i, client, k)
            if shots == plan.shots[-1] and repeat == 0:
                kept[i] = source
            alone, epochs = _train_alone(method, client, k, work.total)
            rows.append(
                Score(
                    client=i,
                    shots=format_shots(shots),
                    repeat=repeat,
                    rows=len(client.y),
                    personal=_score(method_calls.personal_predictor(method, *source), pool, i),
                    alone=_score(alone, pool, i),
                    shared=shared,
                    epochs_alone=epochs,
                )
            )
            watch(len(rows), total)
    return rows, kept


def personalise(source_run: SourceRun, new_clients: NewClientSetup, i: ClientId, client: Client, k: Key) -> ModelSource:
    """Train the personal model of a new client. The server's state for the new client is discarded afterwards."""
    method, server, task = new_clients.method, source_run.server, new_clients.task
    server_side = ServerSideStates(method, task, source_run.setup.config.seed, MemoryStore())
    down, up = server_side.download(server, i, Round(source_run.round)), None
    with torch.no_grad():
        if isinstance(method, AdaptsNewClients):
            return ModelSource(down, None, to_contiguous(method_calls.adapt(method, server, client, k)), client)
        state = method_calls.init_client(method, client, key(source_run.setup.config.seed, "init", i))
        for r in (Round(source_run.round, at) for at in range(len(exchanges_of(method)))):
            if up is not None:
                list(server_side.serve_replies(server, iter([Reply(i, up)]), Round(source_run.round, r.exchange - 1)))
                down = server_side.download(server, i, r)
            part = take_part(method, r, down, state, client, k)
            up, state = part.upload, part.finish()
    return ModelSource(down, up, state, client)


def _train_alone(method: AnyMethod, client: Client, k: Key, work: int) -> tuple[Predictor, int]:
    """Train the same architecture alone on the same rows, with about ``work`` operations; return it and its epochs."""
    optim = method.optim if isinstance(method, HasOptimiser) else SGD()
    alone = Local(optim.for_epochs(1))
    nothing = alone.init_server(None, k)  # type: ignore[arg-type]
    first = alone.init_client(client, k)
    with torch.no_grad(), OperationCounter() as one:
        alone.client_update(nothing, first, client, Round(0), k)
    epochs = max(1, round(work / one.total))
    alone = Local(optim.for_epochs(epochs))
    with torch.no_grad():
        _, state = alone.client_update(nothing, first, client, Round(0), k)
    return client.predictor(state.params), epochs


def _score(predictor: Predictor, pool: ClientPool, i: ClientId) -> float:
    test = pool.test[pool.position(i)]
    return pool.problem.score(predict(predictor, test.x), test.y)
