"""Build the proxy extractor of pFedES: a small network from images to images of the same shape."""

from collections.abc import Sequence

import torch
from torch import nn

from ..errors import AtollError, unknown
from .registry import Shape, named

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


def proxy(
    shape: Shape,
    filters: Sequence[int] = (8,),
    kernel: int = 3,
    activation: str = "relu",
    final_relu: bool = True,
) -> nn.Module:
    """Build a proxy: convolutions to each number of ``filters`` and back to the image's channels.

    Args:
        shape: (channels, height, width) of images.
        filters: channels of the hidden convolutions.
        kernel: side of the kernels; odd.
        activation: activation between convolutions.
        final_relu: make the output non-negative, as the method's released code does.

    Raises:
        AtollError: if the data are no images, or an argument is not allowed.
    """
    if len(shape) != 3:
        raise AtollError(f"A proxy needs images (channels, height, width), but the data have shape {shape}.")
    if activation not in _ACTIVATIONS:
        raise unknown("activation", activation, _ACTIVATIONS)
    layers: dict[str, nn.Module] = {}
    inside = shape[0]
    for i, width in enumerate((*filters, shape[0]), 1):
        layers[f"conv{i}"] = nn.Conv2d(inside, width, kernel, padding=kernel // 2)
        layers[f"act{i}"] = _ACTIVATIONS[activation]()
        inside = width
    del layers[f"act{len(filters) + 1}"]
    if final_relu:
        layers["relu"] = nn.ReLU()
    return _check_shape(named(**layers), shape, kernel)


def _check_shape(net: nn.Module, shape: Shape, kernel: int) -> nn.Module:
    with torch.no_grad():
        out = tuple(net(torch.zeros(1, *shape)).shape[1:])
    if out != tuple(shape):
        raise AtollError(f"A proxy with kernel {kernel} turns {tuple(shape)} into {out}. Use an odd kernel such as 3.")
    return net
