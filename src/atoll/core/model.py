"""Run a network as pure functions of its parameters."""

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from ..errors import AtollError
from .batch import Batch, Step
from .functional_network import FunctionalNetwork
from .layers import Linear, Sequence, noise
from .params import BUFFERS, weights
from .payloads import Params
from .prng import Key, seed_of
from .vmap.linear_chain import ChainLayer, find_chain

BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Predictor = Callable[[Tensor], Tensor]
CHUNK = 256  # rows in a forward pass outside training: more only cost memory


class Model:
    """An ``nn.Module`` as pure functions of its params.

    Calling the model evaluates it (running statistics, no dropout). Only :meth:`step` runs in training mode.

    Args:
        net: a module with children ``body`` and ``head``; a proxy needs neither.
        name: name of the architecture; clients whose models have the same name can be batched.
        adapter: what is trained in place of the whole network; None if all of it is.
        vectorisable: whether vmap can run the network for many clients at once.

    Attributes:
        has_buffers: whether the network keeps running statistics.
        batch_norms: names of the BatchNorm layers, which mix the rows of a batch.

    Example:
        >>> model = Model(Net(body, head))
        >>> logits = model(model.init(), x)
    """

    def __init__(self, net: nn.Module, name: str = "model", vectorisable: bool = True, adapter: str | None = None):
        self.architecture = name
        self.name = name if adapter is None else f"{name}+{adapter}"
        self.vectorisable = vectorisable
        self.has_buffers = any(True for _ in net.buffers())
        self.batch_norms = frozenset(name for name, m in net.named_modules() if isinstance(m, BatchNorm))
        self._run = FunctionalNetwork(net)

    @property
    def net(self) -> nn.Module:
        """Return the network with its initial values, in evaluation mode."""
        return self._run.net

    def init(self, k: Key | None = None) -> Params:
        """Return copies of the initial values. Names of buffers have the prefix ``BUFFERS``.

        Args:
            k: draw other initial values from this key, by the rule of each layer (``reset_parameters``).

        Raises:
            AtollError: if a key is given and a layer has no such rule.
        """
        net = self.net if k is None else _drawn_anew(self.net, k)
        params = {name: v.clone() for name, v in net.named_parameters()}
        return params | {BUFFERS + name: v.clone() for name, v in net.named_buffers()}

    @cached_property
    def linear_chain(self) -> tuple[ChainLayer, ...] | None:
        """The layers of a network of linear layers in a row; None for all other networks."""
        return find_chain(self.net, Linear, Sequence) if type(self) is Model else None

    @cached_property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the params without buffers, in the order of the model, which payloads need not follow."""
        return tuple(weights(self.init()))

    def network_params(self, params: Params) -> Params:
        """Return the tensors of the network for these params: the params themselves, unless they are adapters."""
        return params

    def to(self, device: str) -> None:
        """Move the network to a device. Call this before the first forward pass."""
        self._run.to(device)

    @property
    def feature_dim(self) -> int:
        """Number of features that enter the head."""
        return int(self.net.get_submodule("head").in_features)  # type: ignore[arg-type]

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Return the features [N, d] of rows ``x``, in evaluation mode."""
        return _run_in_chunks(lambda rows: self._run("body", params, rows), x)

    def classify(self, params: Params, h: Tensor) -> Tensor:
        """Return the logits [N, C] of features ``h``, in evaluation mode."""
        return self._run("head", params, h)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Return the logits [N, C] of rows ``x``, in evaluation mode."""
        return _run_in_chunks(lambda rows: self._run("", params, rows), x)

    def step(self, params: Params, batch: Batch) -> Step:
        """Run a forward pass in training mode, with batch statistics and dropout drawn from the batch's key."""
        stats: Params = {}
        if self.has_buffers:
            stats = {name: v.clone() for name, v in params.items() if name.startswith(BUFFERS)}
        fresh = params | stats if stats else params
        with noise(batch.k):
            h = self._run("body", fresh, batch.x, training=True)
            logits = self._run("head", fresh, h, training=True)
        batch.stats.update(stats)
        return Step(params, batch, h, logits)


def _drawn_anew(net: nn.Module, k: Key) -> nn.Module:
    """Return a copy of a network whose layers have drawn their initial values from a key."""
    net = copy.deepcopy(net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(k))
        for name, layer in net.named_modules():
            rule = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
            if rule is not None:
                rule()
            elif next(layer.parameters(recurse=False), None) is not None:
                raise AtollError(
                    f"The layer {name or 'of the network'} ({type(layer).__name__}) has weights and no "
                    "reset_parameters() that draws them, so the model has no second random start. Add one to the layer."
                )
    return net


def _run_in_chunks(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return f(x) if len(x) <= CHUNK else torch.cat([f(rows) for rows in x.split(CHUNK)])
