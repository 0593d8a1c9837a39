"""From a configuration to everything a run needs: data, clients, models, method."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from . import compat, models
from .clock import Devices
from .config import Config
from .core import ClientId, Model, Need
from .data.dataset import Array, Dataset
from .data.datasets import load
from .data.downloads import data_folder
from .data.federation import PARTS, Federation, federate
from .data.transforms import Transform, preset
from .errors import AtollError
from .fleet import Fleet, Shares
from .key import key, seed_of
from .run import AnyMethod
from .settings import filled, make, pair, value_of

NAMED = ("natural", "file:")  # partitions that name their clients themselves
DEFAULT_CLIENTS = 10
SMALL_IMAGE = 16  # up to this side, and for tables, a small network of linear layers is the default
VMAP_LIMIT = 200_000  # weights up to which a step costs more in overhead than in arithmetic


@dataclass(frozen=True)
class Setup:
    """A run that is ready to start."""

    config: Config
    method: AnyMethod
    federation: Federation
    fleet: Fleet
    devices: Devices = Devices()


def assemble(
    config: Config, dataset: Dataset | None = None, nets: Sequence[nn.Module] = (), method: AnyMethod | None = None
) -> Setup:
    """Build and check everything; a data set, networks or a method given as objects stand in for their names."""
    devices = filled(Devices(), config.clock, "--clock")
    method = method or make(config.method, config.settings, config.terms, config.optimiser_options)
    data = dataset if dataset is not None else load(config.data, config.data_dir)
    request = (_clients(config), config.partition, config.split, config.seed, config.public)
    federation = federate(data, *request, cache=_partition_cache(config))
    transform = preset(config.transform, data.name, data.shape)
    fleet = _fleet(config, method, federation, transform, nets)
    config = replace(
        config,
        models=tuple(fleet.architectures()) if not config.models else config.models,
        backend=_backend(fleet) if config.backend == "auto" else config.backend,
        settings={path: value_of(method, path) for path in config.settings},
    )
    compat.check(method, fleet, config.method, config.backend)
    return Setup(config, method, federation, fleet, devices)


def check_fit(config: Config, fleet: Fleet) -> None:
    """Raise what would be raised if the method of ``config`` were to run on these clients."""
    method = make(config.method, config.settings, config.terms, config.optimiser_options)
    if Need.PROXY in method.needs:
        _proxy(config, tuple(fleet.train.all.x.shape[1:]))
    compat.check(method, fleet, config.method, config.backend)


def _partition_cache(config: Config) -> Path | None:
    """A folder beside the data, unless nothing may be written there."""
    folder = data_folder(config.data_dir)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return folder / "partitions" if os.access(nearest, os.W_OK) else None


def _clients(config: Config) -> int | None:
    if config.clients is None and not config.partition.startswith(NAMED):
        return DEFAULT_CLIENTS
    return config.clients


def _backend(fleet: Fleet) -> str:
    """Batch clients where arithmetic is cheap: small networks of linear layers. Decided by a rule, never by a clock."""
    built = {fleet.models[i].name: fleet.models[i] for i in fleet.ids}.values()
    return "vmap" if all(model.vectorisable and _overhead_bound(model.net) for model in built) else "processes"


def _overhead_bound(net: nn.Module) -> bool:
    weights = sum(p.numel() for p in net.parameters())
    return weights <= VMAP_LIMIT and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def _fleet(
    config: Config, method: AnyMethod, federation: Federation, transform: Transform, nets: Sequence[nn.Module]
) -> Fleet:
    train, val, test = (_shares(federation, federation.part(part), transform) for part in PARTS)
    shape = tuple(train.all.x.shape[1:])  # a transform may pad images
    dealt = _given(nets, federation) if nets else _built(config, method, federation, shape)
    return Fleet(
        ids=federation.clients,
        models=dealt,
        num_classes=federation.dataset.num_classes,
        train=train,
        val=val,
        test=test,
        proxy=_proxy(config, shape) if Need.PROXY in method.needs else None,
        tutors=_tutors(config, federation.dataset, shape, dealt) if Need.TUTORS in method.needs else {},
        public=transform.prepare(federation.rows(federation.public)) if len(federation.public) else None,
        augment=transform.augment if transform.augments else None,
        global_test=config.global_test,
    )


def _shares(federation: Federation, owned: Sequence[Array], transform: Transform) -> Shares:
    order = np.concatenate(owned)
    x, y = transform.prepare(federation.rows(order)), torch.from_numpy(federation.labels(order)).long()
    return Shares(x, y, [len(rows) for rows in owned])


# -- models -----------------------------------------------------------------------------------------------------------


def _given(nets: Sequence[nn.Module], federation: Federation) -> dict[ClientId, Model]:
    """The user's own networks, dealt out in turn."""
    for net in nets:
        _check_given(net, federation.dataset)
    titles = [type(net.body).__name__ for net in nets]
    names = [title + (f"-{at}" if titles.count(title) > 1 else "") for at, title in enumerate(titles)]
    built = [Model(net, name, _vectorisable(net)) for net, name in zip(nets, names, strict=True)]
    return {i: built[at % len(built)] for at, i in enumerate(federation.clients)}


def _check_given(net: nn.Module, data: Dataset) -> None:
    head = getattr(net, "head", None)
    if not isinstance(head, nn.Linear) or not isinstance(getattr(net, "body", None), nn.Module):
        raise AtollError(
            f"{type(net).__name__} has no parts called body and head. "
            "Use atoll.models.split(network, head=NAME) with the name of its last linear layer."
        )
    if head.out_features != data.num_classes:
        raise AtollError(
            f"The network has {head.out_features} outputs, but {data.name!r} has {data.num_classes} classes. "
            f"Use atoll.models.split(network, head=NAME, num_classes={data.num_classes})."
        )


def _built(config: Config, method: AnyMethod, federation: Federation, shape: tuple[int, ...]) -> dict[ClientId, Model]:
    """Networks by name, dealt out in turn; one set of initial weights for each, or for each client."""
    names = config.models or (_default_model(federation.dataset),)

    @cache
    def build(name: str, owner: ClientId | None) -> Model:
        return _model(config, federation.dataset, shape, name, not method.bias_free(), owner)

    own = config.init == "per_client"
    return {i: build(names[at % len(names)], i if own else None) for at, i in enumerate(federation.clients)}


def _model(
    config: Config, data: Dataset, shape: tuple[int, ...], name: str, bias: bool, owner: ClientId | None
) -> Model:
    """Build by name; the initial weights follow from the seed, the name and perhaps the owner."""
    base, _, text = name.partition(":")
    options: dict[str, Any] = dict(_option(part) for part in text.split("&") if part)
    if unfit := {"width", "head_bias"} & options.keys():
        raise AtollError(f"Model {name!r}: {unfit.pop()} is the same for all models of a run. Use --width for widths.")
    if base in models.names() and data.kind not in models.kinds(base):
        fitting = [n for n in models.names() if data.kind in models.kinds(n)]
        raise AtollError(f"Model {base!r} cannot read {data.kind} data. Models that can: {', '.join(fitting)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", name, owner or "")))
        net = models.build(base, shape, data.num_classes, head_bias=bias, width=config.width, **options)
    return Model(net, name, _vectorisable(net))


def _tutors(
    config: Config, data: Dataset, shape: tuple[int, ...], dealt: Mapping[ClientId, Model]
) -> dict[ClientId, Model]:
    """The server's model for each client: one extractor for all, with as many outputs as the client has features."""
    name = config.server_model or ("server_cnn" if data.kind == "image" else "mlp_b")

    @cache
    def build(width: int) -> Model:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(key(config.seed, "server model", name)))  # the extractor is made first
            return Model(models.build(name, shape, width), name)

    return {i: build(model.feature_dim) for i, model in dealt.items()}


def _option(text: str) -> tuple[str, Any]:
    """``native28=true`` or ``hidden=128-64`` as a name and a plain value."""
    name, value = pair(text)
    if re.fullmatch(r"\d+(-\d+)+", value):
        return name, tuple(int(number) for number in value.split("-"))
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _vectorisable(net: nn.Module) -> bool:
    """Whether vmap can run it: recurrent kernels have no batching rule."""
    return not any(isinstance(m, nn.RNNBase) for m in net.modules())


def _default_model(data: Dataset) -> str:
    if data.kind == "image":
        return "mlp" if max(data.shape[1:]) <= SMALL_IMAGE else "cnn1"
    return "bilstm" if data.kind == "text" else "mlp"


def _proxy(config: Config, shape: tuple[int, ...]) -> Model:
    try:
        filters = tuple(int(f) for f in config.proxy.split("-"))
        if min(filters) < 1:
            raise ValueError
    except ValueError:
        raise AtollError(f"--proxy wants filter counts such as 8 or 8-16, not {config.proxy!r}.") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", "proxy")))
        return Model(models.proxy(shape, filters), "proxy")
