"""A network as pure functions of its parameters."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .batch import Batch, Step
from .functional_network import FunctionalNetwork
from .layers import noise
from .params import BUFFERS
from .payloads import Params

Predictor = Callable[[Tensor], Tensor]
CHUNK = 256  # rows per forward pass outside training: larger ones only cost memory


class Model:
    """An ``nn.Module`` as pure functions of its params; with a ``body`` and a ``head``, except for proxies.

    Calling it is evaluation (running statistics, no dropout); only :meth:`step` trains.
    """

    def __init__(self, net: nn.Module, name: str = "model", vectorisable: bool = True):
        self.name = name
        self.vectorisable = vectorisable
        self.has_buffers = any(True for _ in net.buffers())
        self._run = FunctionalNetwork(net)

    @property
    def net(self) -> nn.Module:
        """The network with its initial values, in evaluation mode."""
        return self._run.net

    def init(self) -> Params:
        """Fresh copies of the initial values, buffers included."""
        params = {name: v.clone() for name, v in self.net.named_parameters()}
        return params | {BUFFERS + name: v.clone() for name, v in self.net.named_buffers()}

    def to(self, device: str) -> None:
        """Move the model to a device, before it is first run."""
        self._run.to(device)

    @property
    def feature_dim(self) -> int:
        return int(self.net.get_submodule("head").in_features)  # type: ignore[arg-type]

    def features(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._run("body", params, rows), x)

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return self._run("head", params, h)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._run("", params, rows), x)

    def step(self, params: Params, batch: Batch) -> Step:
        """Forward pass in training mode: batch statistics, dropout drawn from the batch's key."""
        stats: Params = {}
        if self.has_buffers:
            stats = {name: v.clone() for name, v in params.items() if name.startswith(BUFFERS)}
        fresh = params | stats if stats else params
        with noise(batch.k):
            h = self._run("body", fresh, batch.x, training=True)
            logits = self._run("head", fresh, h, training=True)
        batch.stats.update(stats)
        return Step(params, batch, h, logits)


def _chunked(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return f(x) if len(x) <= CHUNK else torch.cat([f(rows) for rows in x.split(CHUNK)])
