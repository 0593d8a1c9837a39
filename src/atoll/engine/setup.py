"""Build everything that a run needs from a configuration: data, clients, models, method."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..clients.metrics import Metric
from ..clients.pool import ClientPool, build_pool
from ..config import Config
from ..core.hooks import has_bias_free_heads
from ..core.method import AnyMethod, traits_of
from ..core.traits import Need
from ..data.dataset import Dataset
from ..data.downloads import data_folder
from ..data.federate import federate
from ..data.federated_dataset import FederatedDataset, fingerprint
from ..data.partition.specs import resolve
from ..data.seeding import stream
from ..data.split import resolve as resolve_split
from ..data.subset import keep_rows
from ..data.tables.preparations import Preparations
from ..data.transforms import preset
from ..errors import AtollError
from ..methods import _registry
from ..methods._factory import fill_from_option, make, setting_value
from ..privacy.setup import prepare
from ..simulation.clock import Devices
from ..simulation.faults import Faults, read_faults
from ..simulation.topology import Neighbours, read_topology
from ..typing import ClientId
from ..utils.runtime import plain_torch
from . import compatibility
from .execution import choose_backend, resolve_device
from .model_factory import ModelFactory, build_proxy_model, from_modules
from .problem_options import check_targets, check_task, load_data, load_user_metrics
from .round_options import check_round_options, describe_cohorts
from .rows import build_row_splits, load_public_rows, prepare_tables
from .training_options import resolve_training

NAMED = ("natural", "file:")  # partitions that determine the clients themselves
DEFAULT_CLIENTS = 10


@dataclass(frozen=True, repr=False)
class Setup:
    """A run that is ready to start.

    Args:
        config: the configuration, with all defaults resolved.
        method: the method with its settings.
        federation: the data set and its partition.
        pool: the clients.
        devices: simulated devices of the clients.
        new_clients: clients that take no part in the run, for an evaluation of new clients.
        preparations: how the clients prepare raw rows of tables and texts.
        neighbours: neighbours of each client in a run without a server; None for a run with one.
        notes: sentences for the user on choices that were made.
    """

    config: Config
    method: AnyMethod
    federation: FederatedDataset
    pool: ClientPool
    devices: Devices = Devices()
    new_clients: FederatedDataset | None = None
    preparations: Preparations = Preparations()
    neighbours: Neighbours | None = None
    notes: tuple[str, ...] = ()

    def identity(self) -> dict[str, object]:
        """Return what decides the numbers of the run: options, and the edges of a graph that is read from a file."""
        given = self.config.identity()
        return given if self.neighbours is None else given | {"neighbours": dict(self.neighbours)}

    def __repr__(self) -> str:
        return f"<Setup {self.config.label}, {', '.join(self.pool.architectures())} on {self.federation!r}>"


@plain_torch()
def build_setup(
    config: Config,
    dataset: Dataset | None = None,
    nets: Sequence[nn.Module] = (),
    method: AnyMethod | None = None,
    measures: Mapping[str, Metric] | None = None,
) -> Setup:
    """Build and check everything that a run needs.

    Args:
        config: the configuration.
        dataset: used in place of the data set that ``config`` names.
        nets: used in place of the models that ``config`` names.
        method: used in place of the method that ``config`` names.
        measures: used in place of the metrics that ``config`` names.

    Raises:
        AtollError: an option is wrong, or the options do not fit together.
    """
    devices = fill_from_option(Devices(), config.clock, "--clock")
    method = _apply_wait_free(config, method) if method else build_method(config)
    data = load_data(config) if dataset is None else check_task(dataset, config)
    config = replace(config, data_digest=_check_digest(config, data))
    config = replace(config, partition=resolve(config.partition, data.owner_train is not None))
    config = replace(config, split=resolve_split(config.split, data), clients=_client_count(config))
    own_public = 0 if config.public_data else config.public
    federation = federate(
        data,
        config.clients,
        config.partition,
        config.split,
        config.seed,
        own_public,
        cache=_partition_cache(config),
    )
    if config.rows is not None or config.test_rows is not None:
        federation = keep_rows(federation, config.rows, config.test_rows, stream(config.seed, "excerpt"))
    federation, new_clients = federation.split_off(config.new_clients) if config.new_clients else (federation, None)
    config = replace(config, device=resolve_device(config))
    federation, preparations = prepare_tables(config, method, federation)
    told = preparations.notes(federation)
    federation = replace(federation, notes=(*federation.notes, *told))
    data = federation.dataset
    pool = _pool(config, method, federation, preparations, nets)
    pool = replace(pool, metrics=load_user_metrics(config, data.problem, measures))
    check_targets(config, data.problem)
    backend, notes = choose_backend(method, pool, config) if config.backend == "auto" else (config.backend, ())
    config = resolve_training(config, method)
    config = replace(
        config,
        task=config.task if data.num_classes else data.problem.task,
        models=config.models or tuple(dict.fromkeys(pool.models[i].architecture for i in pool.ids)),
        backend=backend,
        settings={path: setting_value(method, path) for path in config.settings},
    )
    compatibility.check(method, pool, config.method, config.backend, config.robust, config.sums)
    compatibility.check_clock(devices, config.deadline)
    check_round_options(method, config, devices, pool)
    build_faults(config, pool.ids)  # raises an error for unknown clients
    config, method, pool = apply_privacy(config, method, pool)
    neighbours = read_topology(config.topology, pool.ids)
    notes += (*told, *describe_cohorts(config, len(pool.ids)))
    return Setup(config, method, federation, pool, devices, new_clients, preparations, neighbours, notes)


def _check_digest(config: Config, data: Dataset) -> str:
    """Return the digest of the data.

    Raises:
        AtollError: the configuration was written for other data.
    """
    digest = fingerprint(data)
    if config.data_digest not in (None, digest):
        raise AtollError(
            f"The data {config.data!r} are not what they were: their digest is {digest}, and data_digest in the "
            f"configuration is {config.data_digest}. Bring them back, or remove data_digest to use them as they are."
        )
    return digest


def build_method(config: Config) -> AnyMethod:
    """Build the method that a configuration names, with its settings."""
    return _apply_wait_free(config, make(config.method, config.settings, config.terms, config.optimiser_options))


def _apply_wait_free(config: Config, method: AnyMethod) -> AnyMethod:
    """Return the method, in its wait-free form under --wait-free."""
    if not config.wait_free:
        return method
    changes = traits_of(method).wait_free
    if changes is None:
        able = ", ".join(name for name, cls in _registry.methods().items() if traits_of(cls).wait_free is not None)
        raise AtollError(
            f"{config.method} trains no personal model that could be trained after the upload. "
            f"Leave out --wait-free, or take one of: {able}."
        )
    changed: AnyMethod = replace(cast(Any, method), **changes)
    return changed


def check_fit(config: Config, pool: ClientPool, method: AnyMethod | None = None) -> None:
    """Raise an AtollError if the method of ``config``, or the one given as an object, cannot run on these clients."""
    method = build_method(config) if method is None else _apply_wait_free(config, method)
    if Need.PROXY in traits_of(method).needs:
        build_proxy_model(config, tuple(pool.train.all.x.shape[1:]))
    compatibility.check(method, pool, config.method, config.backend, config.robust, config.sums)
    check_round_options(method, config, fill_from_option(Devices(), config.clock, "--clock"), pool)
    apply_privacy(config, method, pool)


def apply_privacy(config: Config, method: AnyMethod, pool: ClientPool) -> tuple[Config, AnyMethod, ClientPool]:
    """Apply the privacy options to configuration, method and clients.

    A budget keeps its planned number of rounds, so that a longer run does not weaken the noise.
    """
    if config.dp is not None:
        config = replace(config, dp_rounds=config.dp_rounds or config.rounds)
    return config, *prepare(config, method, pool)


def build_faults(config: Config, clients: Sequence[ClientId]) -> Faults:
    """Build the simulated faults of a configuration."""
    return read_faults(
        clients,
        config.seed,
        drop=config.drop,
        slow=config.slow,
        stragglers=config.stragglers,
        poison=config.poison,
    )


def _partition_cache(config: Config) -> Path | None:
    """Return the folder for cached partitions, or None if the data folder is not writable."""
    folder = data_folder(config.data_dir)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return folder / "partitions" if os.access(nearest, os.W_OK) else None


def _client_count(config: Config) -> int | None:
    if config.clients is None and not config.partition.startswith(NAMED):
        return DEFAULT_CLIENTS
    return config.clients


def _pool(
    config: Config,
    method: AnyMethod,
    federation: FederatedDataset,
    preparations: Preparations,
    nets: Sequence[nn.Module],
) -> ClientPool:
    transform = preset(config.transform, federation.dataset.name, federation.dataset.shape)
    rows = build_row_splits(federation, transform, config.device, preparations, config)
    shape = tuple(rows.train.all.x.shape[1:])  # a transform may pad images
    networks = ModelFactory(config, federation.dataset, shape, code=None, inputs=preparations.own_inputs)
    models = (
        from_modules(nets, federation, config, rows.train.all.x[:2])
        if nets
        else networks.assign(federation.clients, not has_bias_free_heads(method))
    )
    public = preparations.apply_public(load_public_rows(config, federation), federation)
    return build_pool(
        method,
        networks,
        models,
        rows,
        federation.dataset.problem,
        public=None if public is None else transform.prepare(public),
        augment=transform.augmentation,
        device=config.device,
        global_test=config.global_test,
        first_releases=int(config.dp is not None and bool(preparations.sent)),
    )
