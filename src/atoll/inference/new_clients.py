"""Set up clients that join after a run: their rows, in the classes of the run, and their models."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..clients.pool import ClientPool, replace_clients, replace_rows
from ..clients.server_side import ClientServers
from ..core.client import Client
from ..core.hooks import ClosedToNewClients
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..core.problems import Labels, NextToken, Numbers
from ..core.task import Task
from ..data.dataset import Dataset
from ..data.federate import federate
from ..data.federated_dataset import FederatedDataset, fingerprint
from ..data.loading import load
from ..data.seeding import stream
from ..data.split import DEFAULT
from ..data.tables.columns import recode
from ..data.tables.preparation import fit
from ..data.tables.preparations import Preparations
from ..data.tables.statistics import measure
from ..data.transforms import Transform, preset
from ..engine.result import Result
from ..engine.rows import build_row_splits
from ..engine.setup import Setup
from ..errors import AtollError, unknown
from ..methods._factory import with_settings
from ..typing import ClientId
from .models import SavedRun, open_run


@dataclass(frozen=True)
class Plan:
    """The request for an adaptation. Together with the run, the plan determines all results.

    Args:
        data: name of the new clients' data; None for the clients that were held out of the run.
        partition: partition of the data into new clients.
        clients: number of new clients.
        model: architecture of the new clients.
        settings: changed settings of the method.
        shots: rows of each class; None for all rows.
        repeats: how often rows are drawn.
        seed: seed of rows and training.
    """

    data: str | None = None
    partition: str | None = None
    clients: int | None = None
    model: str | None = None
    settings: dict[str, object] = field(default_factory=dict)
    shots: tuple[int | None, ...] = (None,)
    repeats: int = 1
    seed: int = 0


class SourceRun(NamedTuple):
    """A finished run that new clients join.

    Args:
        setup: configuration, method, data and clients.
        server: the server's final state.
        round: number of rounds.
        folder: the run directory, or None for a run in memory.
    """

    setup: Setup
    server: Payload
    round: int
    folder: Path | None


class NewClientSetup(NamedTuple):
    """New clients that are ready to train.

    Args:
        method: the method of the run, with changed settings.
        federation: the new clients' data set and partition.
        pool: the new clients.
        task: the server's view of the run, with the new clients' models.
        transform: preparation of images.
        preparations: preparation of tables and texts.
        notes: sentences for the user.
    """

    method: AnyMethod
    federation: FederatedDataset
    pool: ClientPool
    task: Task
    transform: Transform
    preparations: Preparations
    notes: tuple[str, ...]


def setup_new_clients(setup: Setup, plan: Plan, data: Dataset | None = None) -> NewClientSetup:
    """Set up the new clients of a plan, with the models of the run's first client of the same architecture.

    Raises:
        AtollError: the method cannot serve new clients, or the data do not fit the run.
    """
    method = with_settings(setup.method, plan.settings, setup.config.method)
    if isinstance(method, ClosedToNewClients) and (reason := method.why_closed()):
        raise AtollError(f"{setup.config.label} has nothing for clients that come after the run: {reason}.")
    known, config = setup.federation.dataset, setup.config
    federation = _held_out(setup) if plan.data is None and data is None else _partition(setup, plan, data)
    transform = preset(config.transform, known.name, known.shape)
    preparations = _preparations(setup, federation)
    rows = build_row_splits(federation, transform, config.device, preparations, config)
    pool = replace_clients(setup.pool, federation.clients, rows, _reference_client(setup.pool, plan.model))
    task = setup.pool.task()
    task = replace(
        task,
        models={**task.models, **pool.models},
        server_models={**task.server_models, **pool.server_models},
    )
    return NewClientSetup(method, federation, pool, task, transform, preparations, _warn_if_seen(setup, federation))


def _preparations(setup: Setup, federation: FederatedDataset) -> Preparations:
    """Return the preparations of new clients: what the clients of the run agreed on, and their own training rows."""
    columns, options = setup.federation.dataset.columns, setup.config.table_options
    if not columns:
        return Preparations()
    if options.own_columns:
        raise AtollError(
            "New clients get a model of the run, and with --columns own each client's model reads the columns of that "
            "client. Repeat the run with --columns common."
        )
    own = {i: federation.rows(rows) for i, rows in zip(federation.clients, federation.train, strict=True)}
    return Preparations(
        {i: fit(columns, setup.preparations.agreed, measure(x, columns), options) for i, x in own.items()}
    )


def _held_out(setup: Setup) -> FederatedDataset:
    if setup.new_clients is None:
        raise AtollError(
            "No client was held out of this run. Give --data with the samples of new clients, or repeat the run with "
            "--new-clients N."
        )
    return setup.new_clients


def _partition(setup: Setup, plan: Plan, given: Dataset | None) -> FederatedDataset:
    """Partition the data by their owners or as the plan says; by default one new client has all rows."""
    found = given if given is not None else load(str(plan.data), setup.config.data_dir, setup.config.task)
    data = translate_labels(found, setup.federation.dataset)
    owned = data.owner_train is not None and plan.clients is None
    partition = plan.partition or ("natural" if owned else "iid")
    clients = plan.clients or (None if partition.startswith(("natural", "file:")) else 1)
    split = setup.config.split
    if split == "official" and not len(data.y_test):
        split = DEFAULT
    made = federate(data, clients, partition, split, plan.seed)
    taken = {*setup.pool.ids, *(setup.new_clients.clients if setup.new_clients else ())}
    return replace(made, clients=tuple(f"new-{i}" if i in taken else i for i in made.clients))


def translate_labels(data: Dataset, known: Dataset) -> Dataset:
    """Return the data set with the label numbers of the run. Classes are matched by name.

    Raises:
        AtollError: rows have another kind or shape than the run's, or a class is unknown to the run.
    """
    where = f"The data of the new clients, {data.name!r},"
    if known.columns and data.columns:
        data = replace(
            data,
            x_train=recode(data.x_train, data.columns, known.columns, where),
            x_test=recode(data.x_test, data.columns, known.columns, where),
            columns=known.columns,
        )
    if (data.kind, data.shape) != (known.kind, known.shape):
        raise AtollError(
            f"{where} are {data.kind} samples of shape {data.shape}, but the run has {known.kind} samples of shape "
            f"{known.shape}. Convert them to that form."
        )
    if data.problem.task != known.problem.task:
        raise AtollError(f"{where} have {data.problem.labels} as labels, but the run has {known.problem.labels}.")
    if isinstance(known.problem, Labels | Numbers):
        if data.classes != known.classes:
            wanted, found = ", ".join(known.classes), ", ".join(data.classes)
            raise AtollError(f"{where} have the label columns {found}, but the run has {wanted}. Name them alike.")
        return replace(data, problem=known.problem)  # the run's unit of numbers
    number = {name: label for label, name in enumerate(known.classes)}
    thing = "token" if isinstance(known.problem, NextToken) else "class"
    for name in data.classes:
        if name not in number:
            raise unknown(thing, name, known.classes, f"in the data {data.name!r}")
    labels = np.array([number[name] for name in data.classes], dtype=np.int64)
    renumbered = {"y_train": labels[data.y_train], "y_test": labels[data.y_test]}
    if isinstance(known.problem, NextToken):  # rows are tokens too
        renumbered |= {"x_train": labels[data.x_train], "x_test": labels[data.x_test]}
    return replace(data, **renumbered, classes=known.classes, problem=known.problem)  # type: ignore[arg-type]


def _reference_client(pool: ClientPool, model: str | None) -> str:
    """Return the first client with an architecture, or the first client of all."""
    names = {pool.models[i].name: i for i in reversed(pool.ids)}
    if model is not None and model not in names:
        raise unknown("architecture", model, names, "of the run")
    return names[model] if model is not None else pool.ids[0]


def _warn_if_seen(setup: Setup, federation: FederatedDataset) -> tuple[str, ...]:
    """Return a warning if the run may have trained on rows of the new clients."""
    if federation is setup.new_clients or fingerprint(federation.dataset) != fingerprint(setup.federation.dataset):
        return ()
    return (
        "The new clients' data set is that of the run, whose clients have trained on its samples. "
        "For a fair test, hold clients out: --new-clients N in the run.",
    )


def find_source_run(run: str | Path | Result | SavedRun) -> SourceRun:
    """Return the run to join: a result in memory, an opened run, or the directory of a run.

    Raises:
        AtollError: the run had no server that a new client could ask.
    """
    source_run = _source_run(run)
    if isinstance(source_run.server, ClientServers):
        raise AtollError(
            f"The run has no server for new clients to ask (--topology {source_run.setup.config.topology}). "
            "Join a run with --topology star."
        )
    return source_run


def _source_run(run: str | Path | Result | SavedRun) -> SourceRun:
    if isinstance(run, Result):
        folder = run.setup.config.out
        return SourceRun(run.setup, run.server, run.summary["rounds"], None if folder is None else Path(folder))
    saved = run if isinstance(run, SavedRun) else open_run(run)
    return SourceRun(saved.setup, saved.server, saved.round, saved.path)


def cut_rows(client: Client, i: ClientId, plan: Plan) -> Iterator[tuple[int | None, int, Client]]:
    """Yield the new client with each number of rows. In one repeat, smaller sets of rows are subsets of larger ones."""
    for repeat in range(plan.repeats):
        order = stream(plan.seed, "shots", i, str(repeat)).permutation(len(client.y))
        for shots in plan.shots:
            groups = client.y.cpu() if client.problem.num_classes else torch.zeros(len(client.y))
            rows = _first_of_each(groups[torch.from_numpy(order)], order, shots)
            yield shots, repeat, replace_rows(client, client.x[rows], client.y[rows])


def last_cut(client: Client, i: ClientId, plan: Plan) -> Client:
    """Return the new client with the training rows of its final model."""
    return next(cut for shots, repeat, cut in cut_rows(client, i, plan) if shots == plan.shots[-1] and repeat == 0)


def _first_of_each(y: Tensor, order: NDArray[np.int64], shots: int | None) -> Tensor:
    """Return the first ``shots`` rows of each class by ``order``, sorted by position."""
    labels = y.numpy()
    place = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of = np.flatnonzero(labels == label)
        place[of] = np.arange(len(of))
    return torch.from_numpy(np.sort(order[place < (math.inf if shots is None else shots)]))
