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

REMAINDER = 0.05  # share of the usual initial weights that stays in a proxy near the identity


def proxy(
    shape: Shape,
    filters: Sequence[int] = (8,),
    kernel: int = 3,
    activation: str = "relu",
    final_relu: bool = True,
    near_identity: bool = False,
) -> nn.Module:
    """Build a proxy: convolutions to each number of ``filters`` and back to the image's channels.

    Args:
        shape: (channels, height, width) of images.
        filters: channels of the hidden convolutions.
        kernel: side of the kernels; odd.
        activation: activation between convolutions.
        final_relu: make the output non-negative, as the method's released code does.
        near_identity: begin with a proxy that returns nearly the images themselves. The usual initial weights blank out
            most of an image, which delays training. Needs one hidden convolution with two filters for each channel,
            relu, and no final relu. This start is not part of the paper.

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
    net = _check_shape(named(**layers), shape, kernel)
    if near_identity:
        if activation != "relu" or final_relu or len(filters) != 1 or filters[0] < 2 * shape[0]:
            raise AtollError(
                f"A proxy near the identity needs relu, final_relu=false and one hidden convolution with at least "
                f"{2 * shape[0]} filters, such as {max(8, 2 * shape[0])}:final_relu=false&near_identity=true."
            )
        _start_near_identity(net, shape[0], kernel // 2)
    return net


def _start_near_identity(net: nn.Module, channels: int, centre: int) -> None:
    """Set the weights to those of relu(x) - relu(-x) = x, plus a small part of the usual initial weights."""
    first, second = (layer for layer in net.children() if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        for values in net.parameters():
            values.mul_(REMAINDER)
        for c in range(channels):
            for sign, filter_index in ((1.0, 2 * c), (-1.0, 2 * c + 1)):
                first.weight[filter_index, c, centre, centre] += sign
                second.weight[c, filter_index, centre, centre] += sign


def _check_shape(net: nn.Module, shape: Shape, kernel: int) -> nn.Module:
    with torch.no_grad():
        out = tuple(net(torch.zeros(1, *shape)).shape[1:])
    if out != tuple(shape):
        raise AtollError(f"A proxy with kernel {kernel} turns {tuple(shape)} into {out}. Use an odd kernel such as 3.")
    return net
