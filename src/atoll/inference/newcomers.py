"""Clients that come after a run: whose rows they have, in the classes of the run, and what they are equipped with."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..clients.pool import ClientPool, replace_clients
from ..core.method import AnyMethod
from ..core.task import Task
from ..data.dataset import Dataset
from ..data.federate import federate
from ..data.federated_dataset import FederatedDataset, fingerprint
from ..data.loading import load
from ..data.transforms import Transform, preset
from ..engine.setup import Setup, build_row_splits
from ..errors import AtollError, unknown
from ..methods._factory import with_settings


@dataclass(frozen=True)
class Plan:
    """What was asked for; with the run, it decides everything."""

    data: str | None = None  # None: the clients that stayed out of the run
    partition: str | None = None
    clients: int | None = None
    model: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    shots: tuple[int | None, ...] = (None,)  # rows of each class; None: all
    repeats: int = 1
    seed: int = 0


class NewcomerSetup(NamedTuple):
    """Newcomers, ready to learn from what a run has left."""

    method: AnyMethod
    federation: FederatedDataset
    pool: ClientPool
    task: Task  # of the run, with the newcomers' models
    transform: Transform
    notes: tuple[str, ...]


def setup_newcomers(setup: Setup, plan: Plan, data: Dataset | None = None) -> NewcomerSetup:
    """The newcomers of a plan, equipped like the first client of the run that has their architecture."""
    method = with_settings(setup.method, plan.settings, setup.config.method)
    if reason := method.why_closed():
        raise AtollError(f"{setup.config.label} has nothing for clients that come after the run: {reason}.")
    known, config = setup.federation.dataset, setup.config
    federation = _held_out(setup) if plan.data is None and data is None else _divided(setup, plan, data)
    transform = preset(config.transform, known.name, known.shape)
    rows = build_row_splits(federation, transform, config.device)
    pool = replace_clients(setup.pool, federation.clients, rows, _like(setup.pool, plan.model))
    task = setup.pool.task()
    task = replace(
        task,
        models={**task.models, **pool.models},
        server_models={**task.server_models, **pool.server_models},
    )
    return NewcomerSetup(method, federation, pool, task, transform, _seen_before(setup, federation))


def _held_out(setup: Setup) -> FederatedDataset:
    if setup.newcomers is None:
        raise AtollError(
            "Nobody stayed out of this run. Give --data with the rows of newcomers, or make the run with --newcomers N."
        )
    return setup.newcomers


def _divided(setup: Setup, plan: Plan, given: Dataset | None) -> FederatedDataset:
    """Newcomers by the owners that the data name, or as the plan divides them; otherwise one newcomer has all rows."""
    found = given if given is not None else load(str(plan.data), setup.config.data_dir)
    data = translated(found, setup.federation.dataset)
    owned = data.owner_train is not None and plan.clients is None
    partition = plan.partition or ("natural" if owned else "iid")
    clients = plan.clients or (None if partition.startswith(("natural", "file:")) else 1)
    split = setup.config.split
    if split == "official" and not len(data.y_test):
        split = "client_811"
    made = federate(data, clients, partition, split, plan.seed)
    taken = {*setup.pool.ids, *(setup.newcomers.clients if setup.newcomers else ())}
    return replace(made, clients=tuple(f"new-{i}" if i in taken else i for i in made.clients))


def translated(data: Dataset, known: Dataset) -> Dataset:
    """The data set with its labels as the run numbers them; classes go by their names."""
    where = f"The data of the newcomers, {data.name!r},"
    if (data.kind, data.shape) != (known.kind, known.shape):
        raise AtollError(
            f"{where} are {data.kind} rows of shape {data.shape}, but the run has {known.kind} rows of shape "
            f"{known.shape}. Bring them to that form."
        )
    number = {name: label for label, name in enumerate(known.classes)}
    for name in data.classes:
        if name not in number:
            raise unknown(f"class of the run, in the data {data.name!r}", name, known.classes)
    labels = np.array([number[name] for name in data.classes], dtype=np.int64)
    return replace(data, y_train=labels[data.y_train], y_test=labels[data.y_test], classes=known.classes)


def _like(pool: ClientPool, model: str | None) -> str:
    """The first client that has the architecture."""
    names = {pool.models[i].name: i for i in reversed(pool.ids)}
    if model is not None and model not in names:
        raise unknown("architecture of the run", model, names)
    return names[model] if model is not None else pool.ids[0]


def _seen_before(setup: Setup, federation: FederatedDataset) -> tuple[str, ...]:
    """A warning if rows of the newcomers may have been trained on."""
    if federation is setup.newcomers or fingerprint(federation.dataset) != fingerprint(setup.federation.dataset):
        return ()
    return (
        "The newcomers' data set is that of the run, whose clients have trained on its rows. "
        "For a fair test, hold clients out: --newcomers N in the run.",
    )
