"""Build the networks of a run: the clients' models, the proxy or shared model, and the server's models."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..config import Config
from ..core.model import Model
from ..core.params import trainable
from ..core.prng import key, seed_of
from ..core.problems import NextToken
from ..core.traits import Need
from ..data.dataset import Dataset
from ..data.federated_dataset import FederatedDataset
from ..errors import AtollError
from ..typing import ClientId
from ..utils.parsing import Spec, anything, parse_options, several, whole

SMALL_IMAGE = 16  # largest side in pixels for which a small network of linear layers is the default
MODEL_FORM = "NAME:OPTION=VALUE&OPTION=VALUE, such as mlp:hidden=32"
PROXY = Spec(
    "FILTERS or FILTERS:OPTION=VALUE&OPTION=VALUE, such as 8, 8-16 or 8-16:kernel=5&activation=elu",
    several(whole("FILTERS", least=1), "-"),
    anything("OPTIONS", optional=True),
)


@dataclass(frozen=True)
class ModelFactory:
    """Builds networks by name; initial weights follow from the seed and the name.

    Args:
        config: configuration of the run.
        data: the data set.
        shape: shape of a row after the transform.
    """

    config: Config
    data: Dataset
    shape: tuple[int, ...]

    def assign(self, clients: Sequence[ClientId], bias: bool) -> dict[ClientId, Model]:
        """Assign the models of the configuration to clients in turn.

        Clients with the same model share its initial weights, unless ``--init per_client`` is set.

        Args:
            clients: names of the clients.
            bias: whether heads have a bias.
        """
        names = self.config.models or (default_model(self.data),)

        @cache
        def build(name: str, owner: ClientId | None) -> Model:
            return self._build(name, bias, owner)

        own = self.config.init == "per_client"
        return {i: build(names[at % len(names)], i if own else None) for at, i in enumerate(clients)}

    def build_proxy(self, needs: Collection[Need], assign: Mapping[ClientId, Model]) -> Model | None:
        """Build the model that clients exchange in place of their own models, if the method needs one."""
        if Need.PROXY in needs:
            return build_proxy_model(self.config, self.shape)
        return self._shared(assign) if Need.SHARED_MODEL in needs else None

    def server_models(self, needs: Collection[Need], assign: Mapping[ClientId, Model]) -> dict[ClientId, Model]:
        """Build the server's model for each client, if the method needs them. All have the same extractor weights."""
        if Need.SERVER_MODELS not in needs:
            return {}
        name = self.config.server_model or ("server_cnn" if self.data.kind == "image" else "mlp_b")

        @cache
        def build(width: int) -> Model:
            with torch.random.fork_rng(devices=[]):
                # The extractor is made before the layer with the client's width, so its weights do not depend on that.
                torch.manual_seed(seed_of(key(self.config.seed, "server model", name)))
                return Model(models.build(name, self.shape, width), name)

        return {i: build(model.feature_dim) for i, model in assign.items()}

    def _shared(self, assign: Mapping[ClientId, Model]) -> Model:
        """Return the model that all clients share: ``--shared-model``, or the smallest of the clients' own."""
        if self.config.shared_model:
            return self._build(self.config.shared_model, bias=True, owner=None)
        return min(assign.values(), key=lambda model: trainable(model.init()))

    def _build(self, name: str, bias: bool, owner: ClientId | None) -> Model:
        base, options = _split_name(name)
        if unfit := {"width", "head_bias"} & options.keys():
            raise AtollError(
                f"Model {name!r}: {unfit.pop()} is the same for all models of a run. Use --width for widths."
            )
        kind = model_kind(self.data)
        if base in models.names() and kind not in models.kinds(base):
            fitting = [n for n in models.names() if kind in models.kinds(n)]
            raise AtollError(f"Model {base!r} cannot read {kind} data. Models that can: {', '.join(fitting)}.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(key(self.config.seed, "model", name, owner or "")))
            outputs, width = self.data.problem.outputs, self.config.width
            net: nn.Module
            if models.is_foreign(base):
                net = models.foreign(base, self.shape, outputs, self._sample(), bias, width, options)
            else:
                net = models.build(base, self.shape, outputs, head_bias=bias, width=width, **options)
        return Model(net, name, _is_vectorisable(net))

    def _sample(self) -> Tensor:
        """Make two rows of the data's shape, to probe the layers of an external network."""
        text = self.data.kind == "text"
        return torch.zeros(2, *self.shape, dtype=torch.long) if text else torch.randn(2, *self.shape)


def _split_name(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``mlp:hidden=8`` into name and options; the name of an external network has two parts."""
    words = name.split(":")
    count = 2 if models.is_foreign(name) else 1
    return ":".join(words[:count]), parse_options("--models", name, ":".join(words[count:]), MODEL_FORM)


def from_modules(nets: Sequence[nn.Module], federation: FederatedDataset) -> dict[ClientId, Model]:
    """Assign the user's own networks to clients in turn.

    Args:
        nets: networks with parts called ``body`` and ``head``.
        federation: the clients and their data.

    Raises:
        AtollError: a network lacks these parts, or has another number of outputs than the data have classes.
    """
    for net in nets:
        _check_module(net, federation.dataset)
    titles = [type(net.body).__name__ for net in nets]
    names = [title + (f"-{at}" if titles.count(title) > 1 else "") for at, title in enumerate(titles)]
    built = [Model(net, name, _is_vectorisable(net)) for net, name in zip(nets, names, strict=True)]
    return {i: built[at % len(built)] for at, i in enumerate(federation.clients)}


def build_proxy_model(config: Config, shape: tuple[int, ...]) -> Model:
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


def model_kind(data: Dataset) -> str:
    """Return the kind of data that a model must read: models of the next token are of a kind of their own."""
    return NextToken.task if isinstance(data.problem, NextToken) else data.kind


def default_model(data: Dataset) -> str:
    """Return the name of the model for data of this kind and size."""
    if isinstance(data.problem, NextToken):
        return "lm"
    if data.kind == "image":
        return "mlp" if max(data.shape[1:]) <= SMALL_IMAGE else "cnn1"
    return "bilstm" if data.kind == "text" else "mlp"


def _check_module(net: nn.Module, data: Dataset) -> None:
    head = getattr(net, "head", None)
    if not isinstance(head, nn.Linear) or not isinstance(getattr(net, "body", None), nn.Module):
        raise AtollError(
            f"{type(net).__name__} has no parts called body and head. "
            "Use atoll.models.split(network, head=NAME) with the name of its last linear layer."
        )
    outputs = data.problem.outputs
    if head.out_features != outputs:
        wanted = f"has {outputs} classes" if data.num_classes else f"needs {outputs}"
        raise AtollError(
            f"The network has {head.out_features} outputs, but {data.name!r} {wanted}. "
            f"Use atoll.models.split(network, head=NAME, num_classes={outputs})."
        )


def _is_vectorisable(net: nn.Module) -> bool:
    """Return True if vmap can batch the network; recurrent kernels have no batching rule."""
    return not any(isinstance(m, nn.RNNBase) for m in net.modules())
