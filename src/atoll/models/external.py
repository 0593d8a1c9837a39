"""Networks that are not in our list: from a file of the user's, or from timm or torchvision; taken apart by themselves.

    ./nets.py:Wide            a class or function; it is given num_classes and shape if it has parameters of these names
    timm:resnet18             timm.create_model
    torchvision:resnet18      torchvision.models.get_model

Options follow a second colon. The last linear layer becomes the head; that nothing follows it is checked on a batch.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from ..errors import AtollError
from ..utils.parsing import refusal
from ..utils.user_code import entry
from .body_and_head import adapted, split
from .registry import Net, Shape

Options = dict[str, Any]
EXAMPLES = {"timm": "resnet18", "torchvision": "resnet18"}  # packages, each with one of its networks


def is_foreign(name: str) -> bool:
    """Return True if a model name starts with a package or a Python file."""
    source = name.partition(":")[0]
    return source in EXAMPLES or source.endswith(".py")


def foreign(
    name: str,
    shape: Shape,
    num_classes: int,
    sample: Tensor,
    head_bias: bool,
    width: int | None,
    options: dict[str, Any],
) -> Net:
    """The network of that name (without its options) for rows like ``sample``, a batch; torch's generator makes it."""
    source, _, of = name.partition(":")
    if not of:
        raise refusal(
            "--models", name, "NAME is missing", f"{source}:NAME, such as {source}:{EXAMPLES.get(source, 'Net')}"
        )
    make = {"timm": _timm, "torchvision": _torchvision}.get(source, _own)
    try:
        net = make(source, of, shape, num_classes, options)
        parts: Any = net if _is_split(net) else split(net, _last(net, name), num_classes, sample)
        parts.body(sample)
    except AtollError:
        raise
    except Exception as reason:  # foreign code may raise anything
        raise AtollError(f"Model {name!r} cannot be used on rows of shape {tuple(shape)}: {reason}") from reason
    return _fitted(parts, num_classes, head_bias, width)


def _own(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = entry(Path(source), of, "Model file")
    known: Options = {"num_classes": num_classes, "shape": tuple(shape)}
    asked = inspect.signature(make).parameters
    return _module(make, f"{source}:{of}", {k: v for k, v in known.items() if k in asked} | options)


def _timm(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = _package("timm").create_model
    given: Options = {"pretrained": False, "num_classes": num_classes, "in_chans": shape[0]} | options
    return _module(lambda **kwargs: make(of, **kwargs), f"timm:{of}", given)


def _torchvision(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = _package("torchvision.models").get_model
    given: Options = {"weights": None} | options
    if given["weights"] is None:
        given["num_classes"] = num_classes  # pretrained weights have their own number, and the head is replaced later
    return _module(lambda **kwargs: make(of, **kwargs), f"torchvision:{of}", given)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        base = name.partition(".")[0]
        raise AtollError(f"Models of {base} need the package: pip install 'atoll[{base}]' ({reason}).") from reason


def _module(make: Callable[..., Any], name: str, options: Options) -> nn.Module:
    net = make(**options)
    if not isinstance(net, nn.Module):
        raise AtollError(f"Model {name!r} gives a {type(net).__name__}, not an nn.Module.")
    return net


def _is_split(net: nn.Module) -> bool:
    return isinstance(getattr(net, "head", None), nn.Linear) and isinstance(getattr(net, "body", None), nn.Module)


def _last(net: nn.Module, name: str) -> str:
    """The layer that the network itself calls its classifier, or else its last linear one."""
    linear: dict[str, Any] = {key: layer for key, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    if not linear:
        raise AtollError(f"Model {name!r} has no linear layer that could be its head. End it with an nn.Linear.")
    told = cast(Any, net).get_classifier() if hasattr(net, "get_classifier") else None
    called = [key for key in linear if linear[key] is told]
    return called[0] if called else list(linear)[-1]


def _fitted(net: Any, num_classes: int, head_bias: bool, width: int | None) -> Net:
    body, features = (
        (net.body, net.head.in_features) if width is None else adapted(net.body, net.head.in_features, width, "linear")
    )
    form = features, num_classes, head_bias
    same = (net.head.in_features, net.head.out_features, net.head.bias is not None) == form
    return Net(body, net.head if same else nn.Linear(features, num_classes, bias=head_bias))
