"""From a configuration to everything a run needs: data, clients, models, method."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from . import compat, models
from .config import Config
from .core import Model, Need
from .data.dataset import Array, Dataset
from .data.datasets import load
from .data.federation import Federation, federate
from .data.transforms import Transform, preset
from .errors import AtollError
from .fleet import Fleet, Shares
from .key import key, seed_of
from .run import AnyMethod
from .settings import make, pair

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


def assemble(
    config: Config, dataset: Dataset | None = None, nets: Sequence[nn.Module] = (), method: AnyMethod | None = None
) -> Setup:
    """Build and check everything; a data set, networks or a method given as objects stand in for their names."""
    method = method or make(config.method, config.settings, config.terms, config.optimiser_options)
    data = dataset if dataset is not None else load_cached(config.data, config.data_dir)
    federation = federate(data, _clients(config), config.partition, config.split, config.seed, config.public)
    transform = preset(config.transform, data.name, data.shape)
    fleet = _fleet(config, method, federation, transform, nets)
    config = replace(
        config,
        models=tuple(fleet.architectures()) if not config.models else config.models,
        backend=_backend(fleet) if config.backend == "auto" else config.backend,
    )
    compat.check(method, fleet, config.method, config.backend)
    return Setup(config, method, federation, fleet)


@lru_cache(maxsize=1)  # comparisons load one data set many times
def load_cached(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def _clients(config: Config) -> int | None:
    if config.clients is None and not config.partition.startswith(NAMED):
        return DEFAULT_CLIENTS
    return config.clients


def _backend(fleet: Fleet) -> str:
    """Batch clients where arithmetic is cheap: small networks of linear layers. Decided by a rule, never by a clock."""
    built = {fleet.models[i].name: fleet.models[i] for i in fleet.ids}.values()
    return "vmap" if all(model.vectorisable and _overhead_bound(model.net) for model in built) else "loop"


def _overhead_bound(net: nn.Module) -> bool:
    weights = sum(p.numel() for p in net.parameters())
    return weights <= VMAP_LIMIT and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def _fleet(
    config: Config, method: AnyMethod, federation: Federation, transform: Transform, nets: Sequence[nn.Module]
) -> Fleet:
    public = transform.prepare(federation.rows(federation.public)) if len(federation.public) else None
    return Fleet(
        ids=federation.clients,
        models=_models(config, method, federation, nets),
        num_classes=federation.dataset.num_classes,
        train=_shares(federation, federation.train, transform),
        val=_shares(federation, federation.val, transform),
        test=_shares(federation, federation.test, transform),
        proxy=_proxy(config, federation.dataset) if Need.PROXY in method.needs else None,
        public=public,
        augment=transform.augment if transform.augments else None,
    )


def _shares(federation: Federation, owned: Sequence[Array], transform: Transform) -> Shares:
    order = np.concatenate(owned)
    x, y = transform.prepare(federation.rows(order)), torch.from_numpy(federation.labels(order)).long()
    return Shares(x, y, [len(rows) for rows in owned])


# -- models -----------------------------------------------------------------------------------------------------------


def _models(config: Config, method: AnyMethod, federation: Federation, nets: Sequence[nn.Module]) -> dict[str, Model]:
    names = config.models or (_default_model(federation.dataset),)
    bias = not method.bias_free()
    if nets:
        given = [Model(net, f"{type(net).__name__}-{at}" if len(nets) > 1 else type(net).__name__, _batches(net))
                 for at, net in enumerate(nets)]  # fmt: skip
        return {i: given[at % len(given)] for at, i in enumerate(federation.clients)}
    if config.init == "per_client":
        dealt = zip(federation.clients, _cycle(names, len(federation.clients)), strict=True)
        return {i: _model(config, federation.dataset, name, bias, i) for i, name in dealt}
    built = {name: _model(config, federation.dataset, name, bias) for name in dict.fromkeys(names)}
    return {i: built[names[at % len(names)]] for at, i in enumerate(federation.clients)}


def _cycle(names: Sequence[str], count: int) -> Iterable[str]:
    return (names[at % len(names)] for at in range(count))


def _model(config: Config, data: Dataset, name: str, bias: bool, owner: str = "all") -> Model:
    """Build by name, initial weights decided by the seed, the architecture and perhaps its owner."""
    base, _, text = name.partition(":")
    options: dict[str, Any] = dict(_option(part) for part in text.split("&") if part)
    if base in models.names() and data.kind not in models.kinds(base):
        fitting = [n for n in models.names() if data.kind in models.kinds(n)]
        raise AtollError(f"Model {base!r} cannot read {data.kind} data. Models that can: {', '.join(fitting)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", name, owner)))
        net = models.build(base, data.shape, data.num_classes, head_bias=bias, width=config.width, **options)
    return Model(net, name, _batches(net))


def _option(text: str) -> tuple[str, int | float | bool | str]:
    """``native28=true`` as a name and a plain value."""
    name, value = pair(text)
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _batches(net: nn.Module) -> bool:
    """Whether vmap can run it: recurrent kernels have no batching rule."""
    return not any(isinstance(m, nn.RNNBase) for m in net.modules())


def _default_model(data: Dataset) -> str:
    if data.kind == "image":
        return "mlp" if max(data.shape[1:]) <= SMALL_IMAGE else "cnn1"
    return "bilstm" if data.kind == "text" else "mlp"


def _proxy(config: Config, data: Dataset) -> Model:
    try:
        filters = tuple(int(f) for f in config.proxy.split("-"))
    except ValueError:
        raise AtollError(f"--proxy wants filter counts such as 8 or 8-16, not {config.proxy!r}.") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", "proxy")))
        return Model(models.proxy(data.shape, filters), "proxy")
