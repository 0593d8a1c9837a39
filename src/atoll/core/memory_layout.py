"""Memory layout of images and kernels: convolutions are fastest with channels last."""

from collections.abc import Callable

import torch
from torch import Tensor


def to_layout(v: Tensor, layout: torch.memory_format) -> Tensor:
    """Return an image or a kernel in a memory layout; tensors without four dimensions are returned as they are."""
    return v.to(memory_format=layout) if v.ndim == 4 else v


def take_rows(v: Tensor, rows: Tensor) -> Tensor:
    """Select rows of a tensor by their numbers. The result has the memory layout of the tensor."""
    if v.ndim == 4 and v.is_contiguous(memory_format=torch.channels_last):
        return v.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return v.index_select(0, rows)


def preferred_layout(run: Callable[[Tensor, torch.memory_format], Tensor], x: Tensor) -> torch.memory_format:
    """Return the memory layout for a network with convolutions, found by running it on two blank rows like ``x``.

    Args:
        run: the network as a function of its input and of the layout of its kernels.
        x: input of the network, rows first.

    Returns:
        Channels last, or the contiguous layout for a network that takes views of its images and therefore fails.
    """
    try:
        with torch.no_grad():
            run(to_layout(x.new_zeros(2, *x.shape[1:]), torch.channels_last), torch.channels_last)
    except RuntimeError:
        return torch.contiguous_format
    return torch.channels_last
