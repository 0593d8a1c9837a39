"""Arithmetic on parameters, which are dictionaries of tensors."""

import torch
from torch import Tensor

from .payloads import Params

BUFFERS = "buffers."  # running statistics live in Params under this prefix


def part(params: Params, child: str) -> Params:
    """The params of one child ("body", "head"), its buffers included, under their full names."""
    starts = (f"{child}.", f"{BUFFERS}{child}.")
    return {name: v for name, v in params.items() if name.startswith(starts)}


def weights(params: Params) -> Params:
    """The params without buffers: what training moves and penalties measure."""
    return {name: v for name, v in params.items() if not name.startswith(BUFFERS)}


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic on parameters


def add(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    return {name: v + scale * b[name] for name, v in a.items()}


def sub(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    return {name: v - scale * b[name] for name, v in a.items()}


def zeros(a: Params) -> Params:
    return {name: torch.zeros_like(v) for name, v in a.items()}


def sqnorm(a: Params) -> Tensor:
    return sum((v.square().sum() for v in a.values()), start=torch.zeros(()))


def trainable(params: Params) -> int:
    """The number of weights."""
    return sum(v.numel() for name, v in params.items() if not name.startswith(BUFFERS))
