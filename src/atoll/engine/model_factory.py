"""Build the networks of a run: the clients' models, the proxy or shared model, and the server's models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..config import Config
from ..core.adapted_model import AdaptedModel
from ..core.model import Model
from ..core.params import trainable
from ..core.prng import key, seed_of
from ..core.problems import NextToken
from ..core.traits import Need
from ..data.dataset import Dataset
from ..data.federated_dataset import FederatedDataset, short_hash
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


class SelectInputs(nn.Module):
    """Passes on some inputs of each row: those of the columns that a client has.

    Args:
        positions: positions of the inputs.
    """

    def __init__(self, positions: Sequence[int]):
        super().__init__()
        self._positions = list(positions)

    def forward(self, x: Tensor) -> Tensor:
        """Return the selected inputs, ``[N, positions]``."""
        return x[:, self._positions]


class NotAdmitted(AtollError):
    """Raised for a network that the receiver of a name does not admit."""


@dataclass(frozen=True)
class ModelFactory:
    """Builds networks by name; initial weights follow from the seed and the name.

    Args:
        config: configuration of the run.
        data: the data set.
        shape: shape of a row after the transform.
        code: names of networks outside of the package that may be built, word for word; None for all of them, where
            every name is the user's own. By default none, because names may come from another machine.
        most_weights: largest number of weights of a network; None for no limit.
        inputs: positions of the inputs that the model of a client reads, under ``--columns own``; by default all.
    """

    config: Config
    data: Dataset
    shape: tuple[int, ...]
    code: Collection[str] | None = ()
    most_weights: int | None = None
    inputs: Mapping[ClientId, tuple[int, ...]] = field(default_factory=dict)

    def assign(self, clients: Sequence[ClientId], bias: bool) -> dict[ClientId, Model]:
        """Assign the models and adapters of the configuration to clients in turn.

        Clients with the same model share its initial weights, unless ``--init per_client`` is set.

        Args:
            clients: names of the clients.
            bias: whether heads have a bias.
        """
        names = self.config.models or (default_model(self.data),)
        adapters = self.config.adapter or (None,)

        @cache
        def build(name: str, adapter: str | None, owner: ClientId | None, inputs: tuple[int, ...] | None) -> Model:
            return self._build(name, bias, owner, adapter, inputs)

        own = self.config.init == "per_client"
        if own and self.config.adapter:
            raise AtollError(
                "--adapter and --init per_client exclude each other: adapters belong to one network, and each client "
                "would have another. Leave out one of them."
            )
        return {
            i: build(names[at % len(names)], adapters[at % len(adapters)], i if own else None, self.inputs.get(i))
            for at, i in enumerate(clients)
        }

    def build_proxy(self, needs: Collection[Need], assign: Mapping[ClientId, Model]) -> Model | None:
        """Build the model that clients exchange in place of their own models, if the method needs one."""
        if Need.PROXY in needs:
            self._check_weights("proxy", lambda: _proxy_network(self.config, self.shape))
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
        own = list(assign.values())
        if self.inputs:  # A shared model reads all columns; those that a client lacks are 0.
            own = [self._build(name, bias=True, owner=None) for name in dict.fromkeys(m.architecture for m in own)]
        return min(own, key=lambda model: trainable(model.init()))

    def _build(
        self,
        name: str,
        bias: bool,
        owner: ClientId | None,
        adapter: str | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> Model:
        net = (self if inputs is None else replace(self, shape=(len(inputs),)))._network(name, bias, owner)
        if inputs is not None:
            net.body = nn.Sequential(SelectInputs(inputs), net.get_submodule("body"))
        made = _make(net, name, adapter, self.config.seed)
        if inputs is not None:
            made.name = f"{made.name} on {len(inputs)} inputs ({short_hash(inputs)[:4]})"
        return made

    def _network(self, name: str, bias: bool, owner: ClientId | None) -> nn.Module:
        """Build a network of its own, with initial weights that follow from the seed and the name."""
        base, options = _split_name(name)
        if unfit := {"width", "head_bias"} & options.keys():
            raise AtollError(
                f"Model {name!r}: {unfit.pop()} is the same for all models of a run. Use --width for widths."
            )
        kind = model_kind(self.data)
        if base in models.names() and kind not in models.kinds(base):
            fitting = [n for n in models.names() if kind in models.kinds(n)]
            raise AtollError(f"Model {base!r} cannot read {kind} data. Models that can: {', '.join(fitting)}.")
        self._check(name, base, options, bias)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(key(self.config.seed, "model", name, owner or "")))
            outputs, width = self.data.problem.outputs, self.config.width
            if models.is_foreign(base):
                return models.foreign(base, self.shape, outputs, self._sample(), bias, width, options)
            return models.build(base, self.shape, outputs, head_bias=bias, width=width, **options)

    def _check(self, name: str, base: str, options: dict[str, Any], bias: bool) -> None:
        """Raise NotAdmitted for a network that may not be built: code from elsewhere, or too many weights."""
        if not models.is_foreign(base):
            outputs, width = self.data.problem.outputs, self.config.width
            self._check_weights(
                name, lambda: models.build(base, self.shape, outputs, head_bias=bias, width=width, **options)
            )
        elif self.code is not None and name not in self.code:
            raise NotAdmitted(f"Model {name!r} is code outside of the package, which is not listed here.")

    def _check_weights(self, name: str, build: Callable[[], nn.Module]) -> None:
        """Raise NotAdmitted for a network with more weights than ``most_weights``."""
        if self.most_weights is None:
            return
        with torch.device("meta"):  # Takes neither memory nor time.
            found = sum(v.numel() for v in build().parameters())
        if found > self.most_weights:
            raise NotAdmitted(f"Model {name!r} has {found:,} weights, and at most {self.most_weights:,} are admitted.")

    def _sample(self) -> Tensor:
        """Make two rows of the data's shape, to probe the layers of an external network."""
        text = self.data.kind == "text"
        return torch.zeros(2, *self.shape, dtype=torch.long) if text else torch.randn(2, *self.shape)


def _split_name(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``mlp:hidden=8`` into name and options; the name of an external network has two parts."""
    words = name.split(":")
    count = 2 if models.is_foreign(name) else 1
    return ":".join(words[:count]), parse_options("--models", name, ":".join(words[count:]), MODEL_FORM)


def _make(net: nn.Module, name: str, adapter: str | None, seed: int) -> Model:
    """Return the model of a network: of the whole network, or of its adapters."""
    if adapter is None:
        return Model(net, name, _is_vectorisable(net))
    return AdaptedModel(net, name, adapter, key(seed, "adapter", name), _is_vectorisable(net))


def from_modules(
    modules: Sequence[nn.Module], federation: FederatedDataset, config: Config, sample: Tensor
) -> dict[ClientId, Model]:
    """Assign the user's own networks, and the adapters of the configuration, to clients in turn.

    Args:
        modules: networks with parts called ``body`` and ``head``, or that end with a linear layer.
        federation: the clients and their data.
        config: configuration of the run.
        sample: a batch of rows, on which networks are checked.

    Raises:
        AtollError: a network does not end with a linear layer, or has another number of outputs than the data have
            classes.
    """
    nets = [_to_net(module, federation.dataset, sample) for module in modules]
    titles = [_title(module) for module in modules]
    names = [title + (f"-{at}" if titles.count(title) > 1 else "") for at, title in enumerate(titles)]
    adapters = config.adapter or (None,)

    @cache
    def build(at: int, adapter: str | None) -> Model:
        return _make(nets[at], names[at], adapter, config.seed)

    return {i: build(at % len(nets), adapters[at % len(adapters)]) for at, i in enumerate(federation.clients)}


def build_proxy_model(config: Config, shape: tuple[int, ...]) -> Model:
    """Build the proxy extractor from a value of ``--proxy``, such as ``8-16:kernel=5&activation=elu``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(key(config.seed, "model", "proxy")))
        return Model(_proxy_network(config, shape), "proxy")


def _proxy_network(config: Config, shape: tuple[int, ...]) -> nn.Module:
    filters, *listed = PROXY.parse("--proxy", config.proxy)
    options = parse_options("--proxy", config.proxy, "".join(listed), PROXY.form)
    try:
        return models.proxy(shape, filters, **options)
    except TypeError as reason:
        raise AtollError(
            f"--proxy {config.proxy}: {reason}. Options: kernel, activation, final_relu, near_identity."
        ) from reason


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


def _title(module: nn.Module) -> str:
    """Return the name of a user's network: its class, or that of its body if it was split before."""
    body = getattr(module, "body", None)
    return type(body if isinstance(body, nn.Module) else module).__name__


def _to_net(module: nn.Module, data: Dataset, sample: Tensor) -> nn.Module:
    try:
        net = models.split_at_last_linear(module, type(module).__name__, None, sample)
        net.body(sample)
    except AtollError:
        raise
    except Exception as reason:  # Code of users may raise anything.
        raise AtollError(
            f"{type(module).__name__} cannot be used on samples of shape {tuple(sample.shape[1:])}: {reason}"
        ) from reason
    outputs = data.problem.outputs
    if net.head.out_features != outputs:
        wanted = f"has {outputs} classes" if data.num_classes else f"needs {outputs}"
        raise AtollError(
            f"The network has {net.head.out_features} outputs, but {data.name!r} {wanted}. "
            f"Use atoll.models.split(network, head=NAME, num_classes={outputs})."
        )
    return net


def _is_vectorisable(net: nn.Module) -> bool:
    """Return True if vmap can batch the network; recurrent kernels have no batching rule."""
    return not any(isinstance(m, nn.RNNBase) for m in net.modules())
