"""Compute with params: dictionaries of tensors, by name."""

import torch
from torch import Tensor

from .payloads import Params

BUFFERS = "buffers."  # prefix of running statistics in Params


def part(params: Params, child: str) -> Params:
    """Return the params of one child ("body" or "head"), buffers included, under their full names."""
    starts = (f"{child}.", f"{BUFFERS}{child}.")
    return {name: v for name, v in params.items() if name.startswith(starts)}


def weights(params: Params) -> Params:
    """Return the params without buffers: those that training changes and penalties measure."""
    return {name: v for name, v in params.items() if not name.startswith(BUFFERS)}


def add(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    """Return a + scale * b."""
    return {name: v + scale * b[name] for name, v in a.items()}


def sub(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    """Return a - scale * b."""
    return {name: v - scale * b[name] for name, v in a.items()}


def zeros(a: Params) -> Params:
    """Return zeros of the shapes of ``a``."""
    return {name: torch.zeros_like(v) for name, v in a.items()}


def sqnorm(a: Params) -> Tensor:
    """Return the squared Euclidean norm over all tensors."""
    return sum((v.square().sum() for v in a.values()), start=torch.zeros(()))


def trainable(params: Params) -> int:
    """Return the number of trainable weights, buffers excluded."""
    return sum(v.numel() for name, v in params.items() if not name.startswith(BUFFERS))


def add_prefix(params: Params, model: str) -> Params:
    """Put the name of the model before the names of params; running statistics keep their own prefix in front."""
    return {
        f"{BUFFERS}{model}.{name.removeprefix(BUFFERS)}" if name.startswith(BUFFERS) else f"{model}.{name}": v
        for name, v in params.items()
    }


def strip_prefix(params: Params, model: str) -> Params:
    """Return the params of one model under the names that the model uses."""
    return {name.replace(f"{model}.", "", 1): v for name, v in part(params, model).items()}
