"""Architectures by name."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import AtollError, unknown

# Imported for what they do: each enters its architectures into the registry.
from . import cnn, lstm, mlp, mobilenet, resnet, shufflenet  # noqa: F401
from .body_and_head import adapted
from .registry import ENTRIES, Entry, Net, Shape


class Row(NamedTuple):
    """One line of the catalogue."""

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
    **options: Any,
) -> nn.Module:
    """The architecture for rows of ``shape``, a module with ``body`` and ``head``; torch's generator initialises it.

    ``width`` gives bodies of different feature widths a common one by an ``adapter`` at their end: "linear" (trainable)
    or "pool" (an average over neighbouring features). A body that has this width already is left as it is.
    """
    entry = _entry(name)
    _check_shape(name, entry, shape)
    _check_options(name, options)
    if num_classes < 1 or (width is not None and width < 1):
        raise AtollError(f"Model {name!r}: {num_classes} classes and width {width}. Both must be at least 1.")
    body, features = entry.make(tuple(shape), **options)
    if width is not None:
        body, features = adapted(body, features, width, adapter)
    return Net(body, nn.Linear(features, num_classes, bias=head_bias))


def names() -> list[str]:
    """Every architecture ``build`` knows, in alphabetical order."""
    return sorted(ENTRIES)


def describe(name: str) -> str:
    """One line about an architecture."""
    return _entry(name).about


def kinds(name: str) -> tuple[str, ...]:
    """The kinds of data it takes: "image", "table", "text"."""
    return _entry(name).kinds


def options(name: str) -> dict[str, Any]:
    """The options of this architecture alone, with their defaults."""
    parameters = inspect.signature(_entry(name).make).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def feature_dim(module: nn.Module) -> int:
    """The number of features that enter the head."""
    head = getattr(module, "head", None)
    if not isinstance(head, nn.Linear):
        raise AtollError(
            f"{type(module).__name__} has no linear layer called 'head'. Adapt it with split(module, head=...)."
        )
    return head.in_features


def catalogue() -> list[Row]:
    """Every architecture with its size for images of 3x32x32 (texts of 200 words) and 10 classes."""
    return [_row(name) for name in names()]


def table() -> str:
    """The catalogue as text."""
    lines = [f"{'model':<18}{'parameters':>12}{'features':>10}  about"]
    lines += [f"{row.name:<18}{row.parameters:>12,}{row.features:>10,}  {row.about}" for row in catalogue()]
    return "\n".join(lines)


def _row(name: str) -> Row:
    with torch.device("meta"):  # sizes only: no memory and no random numbers
        net = build(name, (3, 32, 32) if "image" in kinds(name) else (200,), 10)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return Row(name, parameters, feature_dim(net), describe(name))


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise unknown("model", name, ENTRIES)
    return ENTRIES[name]


def _check_shape(name: str, entry: Entry, shape: Shape) -> None:
    wanted = {"image": 3, "table": 1, "text": 1}
    if len(shape) in {wanted[kind] for kind in entry.kinds} and all(side > 0 for side in shape):
        return
    form = {"image": "images (channels, height, width)", "table": "tables (columns,)", "text": "texts (length,)"}
    raise AtollError(
        f"Model {name!r} takes {' or '.join(form[kind] for kind in entry.kinds)}, but the data have shape "
        f"{tuple(shape)}. Choose one that fits: {', '.join(_fitting(len(shape))) or 'none is known'}."
    )


def _fitting(axes: int) -> list[str]:
    fits = {3: {"image"}, 1: {"table", "text"}}.get(axes, set())
    return [name for name in names() if fits & set(kinds(name))]


def _check_options(name: str, given: dict[str, Any]) -> None:
    known = {*options(name), "head_bias", "width", "adapter"}
    for option in given:
        if option not in known:
            raise unknown(f"option of model {name!r}:", option, known)
