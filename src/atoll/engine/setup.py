"""From a configuration to everything a run needs: data, clients, models, method."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ..clients.evaluation import OWN
from ..clients.metrics import Metric, metrics
from ..clients.pool import ClientPool, ClientRows, RowSplits, build_pool
from ..config import Config
from ..core.method import AnyMethod, Need
from ..data.dataset import Array, Dataset
from ..data.downloads import data_folder
from ..data.federate import federate
from ..data.federated_dataset import PARTS, FederatedDataset
from ..data.loading import load
from ..data.seeding import stream
from ..data.subset import sample_public_rows, subsample
from ..data.transforms import Transform, preset
from ..errors import AtollError
from ..methods import _registry
from ..methods._factory import fill_from_option, make, setting_value
from ..privacy.setup import prepare, rows_one_by_one
from ..simulation.clock import Devices
from ..simulation.faults import Faults, read_faults
from ..typing import ClientId
from . import compatibility
from .model_factory import ModelFactory, from_modules, proxy

NAMED = ("natural", "file:")  # partitions that name their clients themselves
DEFAULT_CLIENTS = 10
VMAP_LIMIT = 200_000  # weights up to which vmap was found faster than two processes: benchmarks/auto_rule.py


@dataclass(frozen=True, repr=False)
class Setup:
    """A run that is ready to start."""

    config: Config
    method: AnyMethod
    federation: FederatedDataset
    pool: ClientPool
    devices: Devices = Devices()
    newcomers: FederatedDataset | None = None  # who stays out of the run

    def __repr__(self) -> str:
        return f"<Setup {self.config.label}, {', '.join(self.pool.architectures())} on {self.federation!r}>"


def build_setup(
    config: Config,
    dataset: Dataset | None = None,
    nets: Sequence[nn.Module] = (),
    method: AnyMethod | None = None,
    measures: Mapping[str, Metric] | None = None,
) -> Setup:
    """Build and check everything; a data set, networks, a method or metrics given as objects stand for their names."""
    devices = fill_from_option(Devices(), config.clock, "--clock")
    method = _timed(config, method) if method else method_of(config)
    data = dataset if dataset is not None else load(config.data, config.data_dir)
    if config.rows is not None:
        data = subsample(data, config.rows, stream(config.seed, "excerpt"))
    own_public = 0 if config.public_data else config.public
    request = (_clients(config), config.partition, config.split, config.seed, own_public)
    federation = federate(data, *request, cache=_partition_cache(config))
    federation, newcomers = federation.parted(config.newcomers) if config.newcomers else (federation, None)
    config = replace(config, device=_device(config))
    transform = preset(config.transform, data.name, data.shape)
    pool = _pool(config, method, federation, transform, nets)
    pool = replace(pool, metrics=metrics(config.metric, OWN) if measures is None else measures)
    config = replace(
        config,
        models=tuple(pool.architectures()) if not config.models else config.models,
        backend=_backend(method, pool, config.device) if config.backend == "auto" else config.backend,
        settings={path: setting_value(method, path) for path in config.settings},
    )
    compatibility.check(method, pool, config.method, config.backend, config.robust, config.sums)
    compatibility.check_clock(devices, config.deadline)
    faults_of(config, pool.ids)  # names of clients must be right
    config, method, pool = apply_privacy(config, method, pool)
    return Setup(config, method, federation, pool, devices, newcomers)


def method_of(config: Config) -> AnyMethod:
    """The method that a configuration names, with its settings."""
    return _timed(config, make(config.method, config.settings, config.terms, config.optimiser_options))


def _timed(config: Config, method: AnyMethod) -> AnyMethod:
    """The method, in its wait-free form if that is asked for."""
    if not config.wait_free:
        return method
    if method.wait_free is None:
        able = ", ".join(name for name, cls in _registry.methods().items() if cls.wait_free is not None)
        raise AtollError(
            f"{config.method} trains no personal model that could wait for the upload. "
            f"Leave out --wait-free, or take one of: {able}."
        )
    changed: AnyMethod = replace(cast(Any, method), **method.wait_free)
    return changed


def check_fit(config: Config, pool: ClientPool) -> None:
    """Raise what would be raised if the method of ``config`` were to run on these clients."""
    method = method_of(config)
    if Need.PROXY in method.needs:
        proxy(config, tuple(pool.train.all.x.shape[1:]))
    compatibility.check(method, pool, config.method, config.backend, config.robust, config.sums)
    apply_privacy(config, method, pool)


def apply_privacy(config: Config, method: AnyMethod, pool: ClientPool) -> tuple[Config, AnyMethod, ClientPool]:
    """Return configuration, method and clients with everything that the options for privacy change before a run.

    A budget keeps the number of rounds that it was planned for, so that a longer run does not weaken its noise.
    """
    if config.dp is not None:
        config = replace(config, dp_rounds=config.dp_rounds or config.rounds)
    return config, *prepare(config, method, pool)


def faults_of(config: Config, clients: Sequence[ClientId]) -> Faults:
    """Return the simulated faults that a configuration asks for."""
    return read_faults(
        clients,
        config.seed,
        drop=config.drop,
        slow=config.slow,
        stragglers=config.stragglers,
        poison=config.poison,
    )


def _partition_cache(config: Config) -> Path | None:
    """A folder beside the data, unless nothing may be written there."""
    folder = data_folder(config.data_dir)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return folder / "partitions" if os.access(nearest, os.W_OK) else None


def _clients(config: Config) -> int | None:
    if config.clients is None and not config.partition.startswith(NAMED):
        return DEFAULT_CLIENTS
    return config.clients


def _device(config: Config) -> str:
    """CUDA if it is there, unless something else is asked for. Worker processes are for the cores of the CPU."""
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise AtollError("--device cuda: torch finds no CUDA device here. Use --device cpu.")
    if config.device == "cuda" and config.backend in ("processes", "ray"):
        raise AtollError(
            f"--backend {config.backend} runs on the CPU only. Use --backend loop or vmap, or --device cpu."
        )
    if config.device != "auto":
        return config.device
    return "cuda" if there and config.backend not in ("processes", "ray") else "cpu"


def _backend(method: AnyMethod, pool: ClientPool, device: str) -> str:
    """Batch clients where arithmetic is cheap: small networks of linear layers. Decided by a rule, never by a clock."""
    built = {pool.models[i].name: pool.models[i] for i in pool.ids}.values()
    able = (
        method.vectorisable
        and not rows_one_by_one(method)
        and all(model.vectorisable and _overhead_bound(model.net) for model in built)
    )
    return "vmap" if able else "processes" if device == "cpu" else "loop"


def _overhead_bound(net: nn.Module) -> bool:
    weights = sum(p.numel() for p in net.parameters())
    return weights <= VMAP_LIMIT and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def _pool(
    config: Config, method: AnyMethod, federation: FederatedDataset, transform: Transform, nets: Sequence[nn.Module]
) -> ClientPool:
    rows = shares_of(federation, transform, config.device)
    shape = tuple(rows.train.all.x.shape[1:])  # a transform may pad images
    networks = ModelFactory(config, federation.dataset, shape)
    models = from_modules(nets, federation) if nets else networks.assign(federation.clients, not method.bias_free())
    public = public_rows(config, federation)
    return build_pool(
        method,
        networks,
        models,
        rows,
        federation.dataset.num_classes,
        public=None if public is None else transform.prepare(public),
        augment=transform.augmentation,
        device=config.device,
        global_test=config.global_test,
    )


def public_rows(config: Config, federation: FederatedDataset) -> Array | None:
    """Rows set aside from the clients' data set, or those of another one; before they are prepared."""
    if config.public_data:
        other, shape = load(config.public_data, config.data_dir), federation.dataset.shape
        return sample_public_rows(other, config.public, shape, stream(config.seed, "guests"))
    return federation.rows(federation.public) if len(federation.public) else None


def shares_of(federation: FederatedDataset, transform: Transform, device: str = "cpu") -> RowSplits:
    """Return all clients' rows for training, validation and test, as tensors on ``device``."""
    return RowSplits(*(_shares(federation, federation.part(part), transform, device) for part in PARTS))


def _shares(federation: FederatedDataset, owned: Sequence[Array], transform: Transform, device: str) -> ClientRows:
    order = np.concatenate(owned)
    x, y = transform.prepare(federation.rows(order)), torch.from_numpy(federation.labels(order)).long()
    return ClientRows(x.to(device), y.to(device), [len(rows) for rows in owned])
