"""A network as pure functions of its parameters."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .batch import Batch, Step
from .layers import key_dropout, noise, optimise_layers, to_layout
from .params import BUFFERS
from .payload import Params
from .vmap import is_batched

Predictor = Callable[[Tensor], Tensor]
CHUNK = 256  # rows per forward pass outside training: larger ones only cost memory


class Model:
    """An ``nn.Module`` as pure functions of its params; with a ``body`` and a ``head``, except for proxies.

    Calling it is evaluation (running statistics, no dropout); only :meth:`step` trains.
    """

    def __init__(self, net: nn.Module, name: str = "model", vectorisable: bool = True):
        self.name = name
        self.vectorisable = vectorisable
        self.net = optimise_layers(key_dropout(copy.deepcopy(net))).requires_grad_(False).eval()
        self._training = copy.deepcopy(self.net).train()
        self.has_buffers = any(True for _ in net.buffers())
        # How images and kernels lie in memory while the net runs; with convolutions, found out when it first runs.
        convolves = any(isinstance(m, nn.Conv2d) for m in net.modules())
        self._layout = None if convolves else torch.contiguous_format
        self._parts: dict[tuple[str, bool], _Part] = {}

    def init(self) -> Params:
        """Fresh copies of the initial values, buffers included."""
        params = {name: v.clone() for name, v in self.net.named_parameters()}
        return params | {BUFFERS + name: v.clone() for name, v in self.net.named_buffers()}

    def to(self, device: str) -> None:
        """Move the model, before it is first run."""
        self.net.to(device)
        self._training.to(device)

    @property
    def feature_dim(self) -> int:
        return int(self.net.get_submodule("head").in_features)  # type: ignore[arg-type]

    def features(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._call("body", params, rows), x)

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return self._call("head", params, h)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._call("", params, rows), x)

    def step(self, params: Params, batch: Batch) -> Step:
        """Forward pass in training mode: batch statistics, dropout drawn from the batch's key."""
        stats: Params = {}
        if self.has_buffers:
            stats = {name: v.clone() for name, v in params.items() if name.startswith(BUFFERS)}
        fresh = params | stats if stats else params
        with noise(batch.k):
            h = self._call("body", fresh, batch.x, training=True)
            logits = self._call("head", fresh, h, training=True)
        batch.stats.update(stats)
        return Step(params, batch, h, logits)

    def _part(self, child: str, training: bool) -> "_Part":
        if (child, training) not in self._parts:
            self._parts[child, training] = _Part(self._training if training else self.net, child)
        return self._parts[child, training]

    def _call(self, child: str, params: Params, x: Tensor, training: bool = False) -> Tensor:
        """In the model's layout, whatever layout the arguments have: it shows in the last bits of a convolution."""
        run = self._part(child, training)
        if is_batched():  # a batched image has five dimensions, which know no such layout
            return run(params, x)
        if child != "head":
            self._layout = self._layout or self._tried(child, params, x)
            return run(params, to_layout(x, self._layout), self._layout)
        return run(params, x)

    def _tried(self, child: str, params: Params, x: Tensor) -> torch.memory_format:
        """Channels last, which convolutions prefer, unless the net takes views that want its images to lie plainly."""
        last = torch.channels_last
        try:
            with torch.no_grad():
                self._part(child, training=False)(params, to_layout(x.new_zeros(2, *x.shape[1:]), last), last)
        except RuntimeError:
            return torch.contiguous_format
        return last


class _Part:
    """A child of a network that is run with given tensors in the place of its own.

    As ``torch.func.functional_call`` does, but the places are found once, not at every call.
    """

    def __init__(self, net: nn.Module, child: str):
        names = {id(v): name for name, v in net.named_parameters()}
        names |= {id(v): BUFFERS + name for name, v in net.named_buffers()}
        self._module = net.get_submodule(child)
        self._places = [  # a tensor that several modules share has several
            (kept, key, v, names[id(v)])
            for module in self._module.modules()
            for kept in (module._parameters, module._buffers)
            for key, v in kept.items()
            if v is not None
        ]

    def __call__(self, params: Params, x: Tensor, layout: torch.memory_format | None = None) -> Tensor:
        for kept, key, v, name in self._places:
            given = params.get(name, v)
            kept[key] = given if layout is None else to_layout(given, layout)  # type: ignore[assignment]
        try:
            out: Tensor = self._module(x)
        finally:
            for kept, key, v, _ in self._places:
                kept[key] = v  # type: ignore[assignment]
        return out


def _chunked(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return f(x) if len(x) <= CHUNK else torch.cat([f(rows) for rows in x.split(CHUNK)])
