"""The networks of a run: the clients' own, those that travel in their place, the server's for each client."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..config import Config
from ..core.method import Need
from ..core.model import Model
from ..core.params import trainable
from ..core.prng import key, seed_of
from ..data.dataset import Dataset
from ..data.federated_dataset import FederatedDataset
from ..errors import AtollError
from ..typing import ClientId
from ..utils.parsing import Spec, anything, parse_options, several, whole

SMALL_IMAGE = 16  # up to this side, and for tables, a small network of linear layers is the default
MODEL_FORM = "NAME:OPTION=VALUE&OPTION=VALUE, such as mlp:hidden=32"
PROXY = Spec(
    "FILTERS or FILTERS:OPTION=VALUE&OPTION=VALUE, such as 8, 8-16 or 8-16:kernel=5&activation=elu",
    several(whole("FILTERS", least=1), "-"),
    anything("OPTIONS", optional=True),
)


@dataclass(frozen=True)
class ModelFactory:
    """Builds networks by name; initial weights follow from the seed and the name."""

    config: Config
    data: Dataset
    shape: tuple[int, ...]  # of a row as the networks see it

    def assign(self, clients: Sequence[ClientId], bias: bool) -> dict[ClientId, Model]:
        """The clients' models, dealt out in turn; one set of initial weights for each, or for each client."""
        names = self.config.models or (default_model(self.data),)

        @cache
        def build(name: str, owner: ClientId | None) -> Model:
            return self._build(name, bias, owner)

        own = self.config.init == "per_client"
        return {i: build(names[at % len(names)], i if own else None) for at, i in enumerate(clients)}

    def build_proxy(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> Model | None:
        """What travels in place of the clients' own models, if the method has such a thing."""
        if Need.PROXY in needs:
            return proxy(self.config, self.shape)
        return self._shared(assign) if Need.SHARED_MODEL in needs else None

    def server_models(self, needs: Collection[str], assign: Mapping[ClientId, Model]) -> dict[ClientId, Model]:
        """The server's model for each client, if the method has any: one extractor, with the client's width."""
        if Need.SERVER_MODELS not in needs:
            return {}
        name = self.config.server_model or ("server_cnn" if self.data.kind == "image" else "mlp_b")

        @cache
        def build(width: int) -> Model:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(key(self.config.seed, "server model", name)))  # the extractor is made first
                return Model(models.build(name, self.shape, width), name)

        return {i: build(model.feature_dim) for i, model in assign.items()}

    def _shared(self, assign: Mapping[ClientId, Model]) -> Model:
        """The model that all clients have besides their own: the one asked for, or the smallest of their own."""
        if self.config.shared_model:
            return self._build(self.config.shared_model, bias=True, owner=None)
        return min(assign.values(), key=lambda model: trainable(model.init()))

    def _build(self, name: str, bias: bool, owner: ClientId | None) -> Model:
        base, options = _parts(name)
        if unfit := {"width", "head_bias"} & options.keys():
            raise AtollError(
                f"Model {name!r}: {unfit.pop()} is the same for all models of a run. Use --width for widths."
            )
        if base in models.names() and self.data.kind not in models.kinds(base):
            fitting = [n for n in models.names() if self.data.kind in models.kinds(n)]
            able = ", ".join(fitting)
            raise AtollError(f"Model {base!r} cannot read {self.data.kind} data. Models that can: {able}.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(key(self.config.seed, "model", name, owner or "")))
            classes, width = self.data.num_classes, self.config.width
            net: nn.Module
            if models.is_foreign(base):
                net = models.foreign(base, self.shape, classes, self._sample(), bias, width, options)
            else:
                net = models.build(base, self.shape, classes, head_bias=bias, width=width, **options)
        return Model(net, name, _vectorisable(net))

    def _sample(self) -> Tensor:
        """Two rows like those of the data, for a network that has to be tried."""
        text = self.data.kind == "text"
        return torch.zeros(2, *self.shape, dtype=torch.long) if text else torch.randn(2, *self.shape)


def _parts(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``mlp:hidden=8`` into name and options; a network from elsewhere has two names before them."""
    words = name.split(":")
    count = 2 if models.is_foreign(name) else 1
    return ":".join(words[:count]), parse_options("--models", name, ":".join(words[count:]), MODEL_FORM)


def from_modules(nets: Sequence[nn.Module], federation: FederatedDataset) -> dict[ClientId, Model]:
    """The user's own networks, dealt out in turn."""
    for net in nets:
        _check_given(net, federation.dataset)
    titles = [type(net.body).__name__ for net in nets]
    names = [title + (f"-{at}" if titles.count(title) > 1 else "") for at, title in enumerate(titles)]
    built = [Model(net, name, _vectorisable(net)) for net, name in zip(nets, names, strict=True)]
    return {i: built[at % len(built)] for at, i in enumerate(federation.clients)}


def proxy(config: Config, shape: tuple[int, ...]) -> Model:
    """Build the proxy extractor from a value of ``--proxy``, such as ``8-16:kernel=5&activation=elu``."""
    filters, *listed = PROXY.parse("--proxy", config.proxy)
    options = parse_options("--proxy", config.proxy, "".join(listed), PROXY.form)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", "proxy")))
        try:
            net = models.proxy(shape, filters, **options)
        except TypeError as reason:
            raise AtollError(f"--proxy {config.proxy}: {reason}. Options: kernel, activation, final_relu.") from reason
    return Model(net, "proxy")


def default_model(data: Dataset) -> str:
    if data.kind == "image":
        return "mlp" if max(data.shape[1:]) <= SMALL_IMAGE else "cnn1"
    return "bilstm" if data.kind == "text" else "mlp"


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


def _vectorisable(net: nn.Module) -> bool:
    """Whether vmap can run it: recurrent kernels have no batching rule."""
    return not any(isinstance(m, nn.RNNBase) for m in net.modules())
