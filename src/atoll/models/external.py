"""Build networks from a user's file, from timm or from torchvision, and split them into body and head.

    ./nets.py:Wide            a class or function, called with num_classes and shape if it has such parameters
    timm:resnet18             timm.create_model
    torchvision:resnet18      torchvision.models.get_model

Options follow a second colon. The last linear layer becomes the head. A batch is run to check that no layer follows.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from ..errors import AtollError
from ..utils.parsing import refusal
from ..utils.user_code import entry
from .body_and_head import adapt_width, split_at_last_linear
from .registry import Net, Shape

Options = dict[str, object]  # keyword arguments of a network
EXAMPLES = {"timm": "resnet18", "torchvision": "resnet18"}  # packages, each with the name of a network


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
    options: Options,
) -> Net:
    """Build a network from a file or a package, initialised by torch's generator.

    Args:
        name: SOURCE:NAME without options, such as ``timm:resnet18`` or ``./nets.py:Wide``.
        shape: shape of one row.
        num_classes: number of classes.
        sample: a batch of rows, on which the network is checked.
        head_bias: whether the head has a bias.
        width: number of features; None for the network's own.
        options: keyword arguments of the network.

    Raises:
        AtollError: if the network cannot be built, split or run.
    """
    source, _, of = name.partition(":")
    if not of:
        raise refusal(
            "--models", name, "NAME is missing", f"{source}:NAME, such as {source}:{EXAMPLES.get(source, 'Net')}"
        )
    make = {"timm": _from_timm, "torchvision": _from_torchvision}.get(source, _from_file)
    try:
        net = make(source, of, shape, num_classes, options)
        parts = split_at_last_linear(net, name, num_classes, sample)
        parts.body(sample)
    except AtollError:
        raise
    except Exception as reason:  # Code of users and packages may raise anything.
        raise AtollError(f"Model {name!r} cannot be used on samples of shape {tuple(shape)}: {reason}") from reason
    return _fit_head(parts, num_classes, head_bias, width)


def _from_file(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = entry(Path(source), of, "Model file")
    known: Options = {"num_classes": num_classes, "shape": tuple(shape)}
    asked = inspect.signature(make).parameters
    return _make_module(make, f"{source}:{of}", {k: v for k, v in known.items() if k in asked} | options)


def _from_timm(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = _import_package("timm").create_model
    given: Options = {"pretrained": False, "num_classes": num_classes, "in_chans": shape[0]} | options
    return _make_module(lambda **kwargs: make(of, **kwargs), f"timm:{of}", given)


def _from_torchvision(source: str, of: str, shape: Shape, num_classes: int, options: Options) -> nn.Module:
    make = _import_package("torchvision.models").get_model
    given: Options = {"weights": None} | options
    if given["weights"] is None:
        given["num_classes"] = num_classes  # Pretrained weights keep their number; the head is replaced later.
    return _make_module(lambda **kwargs: make(of, **kwargs), f"torchvision:{of}", given)


def _import_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        base = name.partition(".")[0]
        raise AtollError(f"Models of {base} need the package: pip install {base} ({reason})") from reason


def _make_module(make: Callable[..., object], name: str, options: Options) -> nn.Module:
    net = make(**options)
    if not isinstance(net, nn.Module):
        raise AtollError(f"Model {name!r} gives a {type(net).__name__}, not an nn.Module.")
    return net


def _fit_head(net: Net, num_classes: int, head_bias: bool, width: int | None) -> Net:
    body, features = (
        (net.body, net.head.in_features)
        if width is None
        else adapt_width(net.body, net.head.in_features, width, "linear")
    )
    form = features, num_classes, head_bias
    same = (net.head.in_features, net.head.out_features, net.head.bias is not None) == form
    return Net(body, net.head if same else nn.Linear(features, num_classes, bias=head_bias))
