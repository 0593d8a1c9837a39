"""Resize images of any size to the size that a network needs."""

import torch.nn.functional as F
from torch import Tensor, nn


class FitImage(nn.Module):
    """Resize images ``[B, channels, H, W]`` to sides of at least ``least`` and at most ``most`` pixels.

    1. Larger images are averaged over areas until the longer side is ``most``; proportions are kept.
    2. Much smaller images are enlarged: every pixel is repeated by the largest whole factor that keeps the longer side
       within ``least``.
    3. Images that are still too small are padded with zeros on both sides equally (the odd one right and below).

    With 32 and 32, images of 64 pixels are averaged to 32, 28 is padded by 2 on each side, 8 is enlarged 4 times, and
    32 stays. The module has no parameters or buffers.

    Args:
        shape: (channels, height, width) of the input.
        least: smallest side of the output.
        most: largest side of the output; None for no limit.

    Attributes:
        shape: (channels, height, width) of the output.
    """

    def __init__(self, shape: tuple[int, ...], least: int, most: int | None = None) -> None:
        super().__init__()
        channels, height, width = shape
        longer = max(height, width)
        self.shrunk: tuple[int, int] | None = None
        if most is not None and longer > most:
            height, width = (max(1, round(side * most / longer)) for side in (height, width))
            self.shrunk = (height, width)
        self.factor = max(1, least // max(height, width))
        height, width = height * self.factor, width * self.factor
        down, across = max(0, least - height), max(0, least - width)
        self.padding = (across // 2, across - across // 2, down // 2, down - down // 2)
        self.shape = (channels, height + down, width + across)

    def forward(self, x: Tensor) -> Tensor:
        if self.shrunk:
            x = F.adaptive_avg_pool2d(x, self.shrunk)
        if self.factor > 1:
            x = F.interpolate(x, scale_factor=self.factor, mode="nearest")
        if any(self.padding):
            x = F.pad(x, self.padding)
        return x

    def extra_repr(self) -> str:
        return f"shape={self.shape}, shrunk={self.shrunk}, factor={self.factor}, padding={self.padding}"
