"""Run a network with given tensors in the place of its own."""

import copy
from itertools import chain

import torch
from torch import Tensor, nn

from .layers import key_dropout, optimise_layers
from .memory_layout import preferred_layout, to_layout
from .params import BUFFERS
from .payloads import Params
from .torch_private import tensor_slots
from .vmap import is_batched


class FunctionalNetwork:
    """A copy of a network whose children run as functions of params, in evaluation or in training mode."""

    def __init__(self, net: nn.Module):
        self.net = key_dropout(optimise_layers(net)).requires_grad_(False).eval()
        self._training = copy.deepcopy(self.net).train()
        # With convolutions, the layout is found out when the network first runs. This is a flag, because pickle names a
        # layout by the first module that imported torch, which workers on other machines may lack.
        convolves = any(isinstance(m, nn.Conv2d) for m in net.modules())
        self._channels_last = None if convolves else False
        self._children: dict[tuple[str, bool], _Child] = {}

    def to(self, device: str) -> None:
        """Move the network to a device, before it is first run."""
        self.net.to(device)
        self._training.to(device)

    def __call__(self, child: str, params: Params, x: Tensor, training: bool = False) -> Tensor:
        """Run a child of the network ("" for the whole) on ``x``.

        Images and kernels are brought into the network's memory layout first, whatever layout the arguments have: the
        layout shows in the last bits of a convolution.
        """
        run = self._child(child, training)
        if is_batched() or child == "head":  # images of batched clients have five dimensions and no such layout
            return run(params, x)
        if self._channels_last is None:
            evaluated = self._child(child, training=False)
            layout = preferred_layout(lambda blank, layout: evaluated(params, blank, layout), x)
            self._channels_last = layout is torch.channels_last
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        return run(params, to_layout(x, layout), layout)

    def _child(self, child: str, training: bool) -> "_Child":
        if (child, training) not in self._children:
            self._children[child, training] = _Child(self._training if training else self.net, child)
        return self._children[child, training]


class _Child:
    """A child of a network that runs with given tensors, like ``torch.func.functional_call``.

    The places of the tensors are found once and not at every call.
    """

    def __init__(self, net: nn.Module, child: str):
        names = {id(v): name for name, v in net.named_parameters()}
        names |= {id(v): BUFFERS + name for name, v in net.named_buffers()}
        self._module = net.get_submodule(child)
        slots = tensor_slots(self._module)
        self._slots = None if slots is None else [(kept, key, v, names[id(v)]) for kept, key, v in slots]
        own = chain(self._module.named_parameters(), self._module.named_buffers())
        self._names = {name: names[id(v)] for name, v in own}

    def __call__(self, params: Params, x: Tensor, layout: torch.memory_format | None = None) -> Tensor:
        if self._slots is None:
            given = {name: params[full] for name, full in self._names.items() if full in params}
            laid = given if layout is None else {name: to_layout(v, layout) for name, v in given.items()}
            return torch.func.functional_call(self._module, laid, (x,))  # type: ignore[no-any-return]
        for kept, key, v, name in self._slots:
            tensor = params.get(name, v)
            kept[key] = tensor if layout is None else to_layout(tensor, layout)
        try:
            out: Tensor = self._module(x)
        finally:
            for kept, key, v, _ in self._slots:
                kept[key] = v
        return out
