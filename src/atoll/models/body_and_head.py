"""Split a module into body and head, and adapt a body to a given number of features."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import AtollError, unknown
from .registry import Body, Net, named


def split(module: nn.Module, head: str, num_classes: int | None = None, sample: Tensor | None = None) -> Net:
    """Split a module into a body and a head at its last linear layer.

    The parameters are shared with the module, and the module itself is not changed.

    Args:
        module: any classifier that ends with a linear layer.
        head: name of the last linear layer.
        num_classes: number of classes; if it differs from the layer's, the head is a new layer.
        sample: a batch on which to check that the module returns the output of the head.

    Raises:
        AtollError: if ``head`` is no linear layer, or not the last one.

    Example:
        >>> net = split(torchvision.models.alexnet(), head="classifier.6", num_classes=10)
    """
    layer = _find_linear(module, head)
    net = Net(_without(module, layer), layer)
    if sample is not None:
        _check_last(module, net, head, sample)
    if num_classes is not None and num_classes != layer.out_features:
        net.head = nn.Linear(
            layer.in_features,
            num_classes,
            bias=layer.bias is not None,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
        )
    return net


def split_at_last_linear(module: nn.Module, name: str, num_classes: int | None, sample: Tensor) -> Net:
    """Return a module that has a body and a head as it is, and split any other at its classifier.

    Args:
        module: any classifier that ends with a linear layer.
        name: name of the network in messages.
        num_classes: number of classes.
        sample: a batch on which to check that the module returns the output of the head.

    Raises:
        AtollError: if no linear layer is the last one.
    """
    if isinstance(getattr(module, "head", None), nn.Linear) and isinstance(getattr(module, "body", None), nn.Module):
        return cast(Net, module)
    return split(module, _find_head(module, name), num_classes, sample)


def adapt_width(body: nn.Module, features: int, width: int, adapter: str) -> Body:
    """Append an adapter to a body so that it returns ``width`` features.

    Args:
        body: the body.
        features: number of features that the body returns.
        width: number of features that are needed.
        adapter: "linear" for a trainable layer, "pool" to average (or repeat) neighbouring features.

    Raises:
        AtollError: if the adapter is unknown.
    """
    if adapter not in ("linear", "pool"):
        raise unknown("adapter", adapter, ("linear", "pool"))
    if width == features:
        return body, features
    last = nn.Linear(features, width) if adapter == "linear" else nn.AdaptiveAvgPool1d(width)
    return named(extractor=body, adapter=last), width


def _find_head(net: nn.Module, name: str) -> str:
    """Return the name of the layer that the network declares as its classifier, or of its last linear layer."""
    linear: dict[str, nn.Module] = {key: layer for key, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    if not linear:
        raise AtollError(f"Model {name!r} has no linear layer that could be its head. End it with an nn.Linear.")
    get_classifier = getattr(net, "get_classifier", None)  # networks of timm have it
    classifier = get_classifier() if callable(get_classifier) else None
    declared = [key for key in linear if linear[key] is classifier]
    return declared[0] if declared else list(linear)[-1]


def _find_linear(module: nn.Module, head: str) -> nn.Linear:
    owner = type(module).__name__
    layers = {name: layer for name, layer in module.named_modules() if name}
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    remedy = f"Name the last of its linear layers: {', '.join(linear)}." if linear else "End it with an nn.Linear."
    if head not in layers:
        raise AtollError(f"{owner} has no layer {head!r}. {remedy}")
    if head not in linear:
        raise AtollError(f"Layer {head!r} of {owner} is a {type(layers[head]).__name__}, not an nn.Linear. {remedy}")
    return cast(nn.Linear, layers[head])


def _without(module: nn.Module, layer: nn.Linear) -> nn.Module:
    """Return a copy of a module with an identity in the place of a layer. All tensors are shared with the module."""
    copied: dict[int, object] = {id(v): v for v in (*module.parameters(), *module.buffers())}
    copied[id(layer)] = nn.Identity()
    return copy.deepcopy(module, copied)


def _check_last(module: nn.Module, net: Net, head: str, sample: Tensor) -> None:
    owner = type(module).__name__
    modes = {part: part.training for part in (*module.modules(), *net.modules())}
    module.eval()
    net.eval()
    try:
        with torch.no_grad():
            whole, features = module(sample), _features(net, sample, f"Layer {head!r} is not the last of {owner}")
            same = torch.allclose(net.head(features), whole, rtol=1e-4, atol=1e-5)
    finally:
        for part, training in modes.items():
            part.training = training
    if not same:
        raise AtollError(
            f"{owner} changes the output of layer {head!r} before it returns (by a softmax?). "
            "Make the module return the output of the layer: raw scores."
        )


def _features(net: Net, sample: Tensor, fault: str) -> Tensor:
    """Return the features of the sample, and check that the head can take them."""
    remedy = "Name the layer whose output the module returns."
    try:
        features = net.body(sample)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:  # The module itself accepted the sample.
        raise AtollError(f"{fault}: without it the module fails ({error}). {remedy}") from error
    got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    wanted = net.head.in_features
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != wanted:
        raise AtollError(f"{fault}: without it the module returns {got}, not [batch, {wanted}]. {remedy}")
    return features
