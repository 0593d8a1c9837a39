"""Build architectures by name, and list all of them."""

import inspect
from typing import NamedTuple

import torch
from torch import nn

from ..errors import AtollError, unknown

# Importing these modules registers their architectures.
from . import cnn, language, lstm, mlp, mobilenet, resnet, shufflenet  # noqa: F401
from .body_and_head import adapt_width
from .registry import ENTRIES, Entry, Net, Shape, TiedBody


class Row(NamedTuple):
    """One line of the catalogue: an architecture with its size."""

    name: str
    parameters: int
    features: int
    about: str


def build(
    name: str,
    shape: Shape,
    num_classes: int,
    *,
    head_bias: bool = True,
    width: int | None = None,
    adapter: str = "linear",
    **options: object,
) -> nn.Module:
    """Build an architecture as a module with ``body`` and ``head``, initialised by torch's generator.

    Args:
        name: one of :func:`names`.
        shape: shape of one row, such as (channels, height, width).
        num_classes: number of classes, or of other outputs.
        head_bias: whether the head has a bias.
        width: number of features; None for the architecture's own. An adapter is appended where the two differ.
        adapter: "linear" (trainable) or "pool" (an average over neighbouring features).
        options: options of the architecture, see :func:`options`.

    Raises:
        AtollError: if the name, an option or a value is not allowed, or if the architecture cannot take the shape.

    Example:
        >>> net = build("cnn1", (3, 32, 32), num_classes=10)
    """
    entry = _entry(name)
    _check_shape(name, entry, shape)
    _check_options(name, options)
    if num_classes < 1 or (width is not None and width < 1):
        raise AtollError(f"Model {name!r}: {num_classes} classes and width {width}. Both must be at least 1.")
    body, features = entry.make(tuple(shape), **options)
    if isinstance(body, TiedBody):
        if width not in (None, features):
            raise AtollError(
                f"Model {name!r} has width {features}, which is that of its embedding too. Use "
                f"{name}:embedding={width} in place of --width."
            )
        return body.make_net(num_classes)
    if width is not None:
        body, features = adapt_width(body, features, width, adapter)
    return Net(body, nn.Linear(features, num_classes, bias=head_bias))


def names() -> list[str]:
    """Return the names of all architectures, in alphabetical order."""
    return sorted(ENTRIES)


def describe(name: str) -> str:
    """Return one line about an architecture."""
    return _entry(name).about


def kinds(name: str) -> tuple[str, ...]:
    """Return the kinds of data that an architecture takes: "image", "table", "text", "next-token"."""
    return _entry(name).kinds


def options(name: str) -> dict[str, object]:
    """Return the options of an architecture with their defaults."""
    parameters = inspect.signature(_entry(name).make).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def feature_dim(module: nn.Module) -> int:
    """Return the number of features that enter a module's head.

    Raises:
        AtollError: if the module has no linear layer ``head``.
    """
    head = getattr(module, "head", None)
    if not isinstance(head, nn.Linear):
        raise AtollError(
            f"{type(module).__name__} has no linear layer called 'head'. Adapt it with split(module, head=...)."
        )
    return head.in_features


def catalogue() -> list[Row]:
    """Return every architecture with its size for images of 3x32x32 (texts of 200 words) and 10 classes."""
    return [_row(name) for name in names()]


def table() -> str:
    """Return the catalogue as a text table."""
    lines = [f"{'model':<18}{'parameters':>12}{'features':>10}  about"]
    lines += [f"{row.name:<18}{row.parameters:>12,}{row.features:>10,}  {row.about}" for row in catalogue()]
    return "\n".join(lines)


def _row(name: str) -> Row:
    with torch.device("meta"):  # Sizes need neither memory nor random numbers.
        net = build(name, (3, 32, 32) if "image" in kinds(name) else (200,), 10)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return Row(name, parameters, feature_dim(net), describe(name))


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise unknown("model", name, ENTRIES)
    return ENTRIES[name]


def _check_shape(name: str, entry: Entry, shape: Shape) -> None:
    wanted = {"image": 3, "table": 1, "text": 1, "next-token": 1}
    if len(shape) in {wanted[kind] for kind in entry.kinds} and all(side > 0 for side in shape):
        return
    form = {
        "image": "images (channels, height, width)",
        "table": "tables (columns,)",
        "text": "texts (length,)",
        "next-token": "texts (length,)",
    }
    raise AtollError(
        f"Model {name!r} takes {' or '.join(form[kind] for kind in entry.kinds)}, but the data have shape "
        f"{tuple(shape)}. Choose one that fits: {', '.join(_fitting(len(shape))) or 'none is known'}."
    )


def _fitting(axes: int) -> list[str]:
    fits = {3: {"image"}, 1: {"table", "text", "next-token"}}.get(axes, set())
    return [name for name in names() if fits & set(kinds(name))]


def _check_options(name: str, given: dict[str, object]) -> None:
    known = {*options(name), "head_bias", "width", "adapter"}
    for option in given:
        if option not in known:
            raise unknown("option", option, known, f"of model {name!r}")
