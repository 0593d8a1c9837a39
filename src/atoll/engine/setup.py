"""Build everything that a run needs from a configuration: data, clients, models, method."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ..clients.metrics import Metric
from ..clients.pool import ClientPool, ClientRows, RowSplits, build_pool
from ..config import Config
from ..core.hooks import has_bias_free_heads
from ..core.method import AnyMethod, traits_of
from ..core.optim.base import Optimiser
from ..core.traits import Need
from ..data.dataset import Array, Dataset
from ..data.downloads import data_folder
from ..data.feature_shift import read_shift
from ..data.federate import federate
from ..data.federated_dataset import PARTS, FederatedDataset, Part, fingerprint
from ..data.loading import load
from ..data.partition.specs import resolve
from ..data.seeding import stream
from ..data.subset import keep_rows, sample_public_rows
from ..data.tables.columns import recode
from ..data.tables.federated import Preparations, fit_clients, with_target_units
from ..data.transforms import Transform, preset
from ..errors import AtollError
from ..methods import _registry
from ..methods._factory import fill_from_option, local_optimisers, make, setting_value
from ..privacy.setup import needs_row_gradients, prepare
from ..simulation.clock import Devices
from ..simulation.faults import Faults, read_faults
from ..simulation.topology import Neighbours, read_topology
from ..typing import ClientId
from ..utils.runtime import plain_torch
from . import compatibility
from .model_factory import ModelFactory, build_proxy_model, from_modules
from .problem_options import check_targets, check_task, load_data, load_user_metrics
from .round_options import check_round_options
from .vmap_trial import find_vmap_problem, is_tried, two_clients

NAMED = ("natural", "file:")  # partitions that determine the clients themselves
DEFAULT_CLIENTS = 10
TRAINING_OPTIONS = {  # options of runs, and the fields of optimisers that they set
    "optimiser": "optimiser",
    "lr": "lr",
    "lr_schedule": "schedule",
    "epochs": "epochs",
    "steps": "steps",
    "batch_size": "batch_size",
}
VMAP_LIMIT = 200_000  # weights up to which vmap is faster than two processes; see benchmarks/auto_rule.py


@dataclass(frozen=True, repr=False)
class Setup:
    """A run that is ready to start.

    Args:
        config: the configuration, with all defaults resolved.
        method: the method with its settings.
        federation: the data set and its partition.
        pool: the clients.
        devices: simulated devices of the clients.
        newcomers: clients that take no part in the run, for an evaluation of new clients.
        preparations: how the clients prepare raw rows of tables and texts.
        neighbours: neighbours of each client in a run without a server; None for a run with one.
        notes: sentences for the user on choices that were made.
    """

    config: Config
    method: AnyMethod
    federation: FederatedDataset
    pool: ClientPool
    devices: Devices = Devices()
    newcomers: FederatedDataset | None = None
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
    own_public = 0 if config.public_data else config.public
    federation = federate(
        data,
        _client_count(config),
        config.partition,
        config.split,
        config.seed,
        own_public,
        cache=_partition_cache(config),
    )
    if config.rows is not None or config.test_rows is not None:
        federation = keep_rows(federation, config.rows, config.test_rows, stream(config.seed, "excerpt"))
    federation, newcomers = federation.split_off(config.newcomers) if config.newcomers else (federation, None)
    config = replace(config, device=_resolve_device(config))
    federation, preparations = prepare_tables(config, federation)
    data = federation.dataset
    pool = _pool(config, method, federation, preparations, nets)
    pool = replace(pool, metrics=load_user_metrics(config, data.problem, measures))
    check_targets(config, data.problem)
    backend, notes = _backend(method, pool, config) if config.backend == "auto" else (config.backend, ())
    config = _resolve_training(config, method)
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
    notes += preparations.notes(federation)
    return Setup(config, method, federation, pool, devices, newcomers, preparations, neighbours, notes)


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


def _resolve_training(config: Config, method: AnyMethod) -> Config:
    """Fill in the options of local training that were not given, where all local training of the method agrees."""
    optimisers = [getattr(method, name) for name in local_optimisers(method)]
    found: dict[str, Any] = {}
    for option, field in TRAINING_OPTIONS.items():
        values = [_training_value(optimiser, field) for optimiser in optimisers]
        # Zero is a setting of a method, not a value of an option: nothing is trained at that rate or length.
        if getattr(config, option) is None and values and values[0] and all(v == values[0] for v in values):
            found[option] = values[0]
    if found.get("steps") is not None or config.steps is not None:
        found.pop("epochs", None)
    return replace(config, **found)


def _training_value(optimiser: Optimiser, field: str) -> Any:
    if field == "optimiser":
        return type(optimiser).__name__.lower()
    value = getattr(optimiser, field, None)
    return value if isinstance(value, int | float | str | None) else str(value)


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


def _resolve_device(config: Config) -> str:
    """Resolve ``--device``. Picks CUDA if available, except for backends with worker processes, which use the CPU."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise AtollError("--device cuda: torch finds no CUDA device here. Use --device cpu.")
    if config.device == "cuda" and config.backend in ("processes", "ray"):
        raise AtollError(
            f"--backend {config.backend} runs on the CPU only. Use --backend loop or vmap, or --device cpu."
        )
    if config.device != "auto":
        return config.device
    return "cuda" if has_cuda and config.backend not in ("processes", "ray") else "cpu"


def _backend(method: AnyMethod, pool: ClientPool, config: Config) -> tuple[str, tuple[str, ...]]:
    """Choose the backend by a fixed rule and not by measured time, and return it with notes for the user.

    Small networks without convolutions are batched by vmap. A method from outside the package that does not say
    whether it can be batched is tried on two clients.
    """
    built = {pool.models[i].name: pool.models[i] for i in pool.ids}.values()
    unbatched = "processes" if config.device == "cpu" else "loop"
    can_batch = (
        (traits_of(method).vmap is not False)
        and not config.until_download
        and not needs_row_gradients(method)
        and all(model.vectorisable and _is_overhead_bound(model.net) for model in built)
    )
    if not can_batch:
        return unbatched, ()
    if is_tried(method) and (problem := find_vmap_problem(method, two_clients(method, pool))):
        return unbatched, (f"--backend auto took {unbatched} for {type(method).__name__}: {problem}",)
    return "vmap", ()


def _is_overhead_bound(net: nn.Module) -> bool:
    weights = sum(p.numel() for p in net.parameters())
    return weights <= VMAP_LIMIT and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def prepare_tables(config: Config, federation: FederatedDataset) -> tuple[FederatedDataset, Preparations]:
    """Fit the preparation of raw rows, and the unit of targets, on the training rows of clients.

    Raises:
        AtollError: an option excludes what clients would have to send or to share.
    """
    options = config.table_options
    preparations = fit_clients(federation, options)
    check_table_privacy(config, bool(preparations.sent))
    if config.global_test and preparations and preparations.common is None:
        raise AtollError(
            "--global-test gives the test rows of all clients to each model, and with --standardise site or --missing "
            "site clients prepare rows differently. Leave it out, or use --standardise all and --missing all."
        )
    return with_target_units(federation, options), preparations


def check_table_privacy(config: Config, sends: bool) -> None:
    """Raise an AtollError if clients would send statistics of columns under a privacy budget."""
    if config.dp is not None and sends:
        raise AtollError(
            f"--standardise {config.standardise} with --missing {config.table_options.missing}: clients would send "
            "sums and categories of their columns, which --dp does not cover, because columns have no known bounds. "
            "Use --standardise site or no with --missing site, and declare categories in a schema file."
        )


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
    )


def load_public_rows(config: Config, federation: FederatedDataset) -> Array | None:
    """Load public rows, set aside from the clients' data set or from another one, before the transform."""
    if config.public_data:
        other, shape = load(config.public_data, config.data_dir, config.task), federation.dataset.shape
        if columns := federation.dataset.columns:
            other = replace(other, x_train=recode(other.x_train, other.columns, columns, config.public_data))
        return sample_public_rows(other, config.public, shape, stream(config.seed, "guests"))
    return federation.rows(federation.public) if len(federation.public) else None


def build_row_splits(
    federation: FederatedDataset,
    transform: Transform,
    device: str = "cpu",
    preparations: Preparations = Preparations(),
    config: Config | None = None,
) -> RowSplits:
    """Return all clients' rows for training, validation and test, as tensors on ``device``.

    Args:
        federation: the clients and their rows.
        transform: preparation of images.
        device: device of the tensors.
        preparations: preparation of tables and texts.
        config: configuration with the simulated shift of features; None for rows of real sites, which are as they are.
    """
    shift = read_shift(config.shift) if config is not None and config.shift else None
    if shift is not None:
        shift.check(federation.dataset.kind)

    def build(part: Part) -> ClientRows:
        owned = federation.part(part)
        x = transform.prepare(preparations.apply(federation, owned))
        if shift is not None and config is not None:
            x = shift.apply(x, [len(rows) for rows in owned], federation.clients, config.seed, part)
        y = torch.from_numpy(federation.labels(np.concatenate(owned))).to(federation.dataset.problem.dtype)
        return ClientRows(x.to(device), y.to(device), [len(rows) for rows in owned])

    return RowSplits(*(build(part) for part in PARTS))
