"""Where privacy noise comes from: the operating system's secure source, or a seed, which only tests may use."""

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Standard normal numbers of a shape, in double precision.
Normal = Callable[[tuple[int, ...]], Tensor]

SUMMED = 4  # normal numbers behind each one: what a double cannot hold of one is blurred by the others


def secure(shape: tuple[int, ...]) -> Tensor:
    """From ``os.urandom``, by the Box-Muller transform."""
    size = math.prod(shape)
    pairs = -(-size * SUMMED // 2)
    words = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
    unit = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53  # strictly between 0 and 1
    radius, angle = np.sqrt(-2 * np.log(unit[0])), 2 * math.pi * unit[1]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: size * SUMMED]
    return torch.from_numpy(normal.reshape(SUMMED, size).sum(0) / math.sqrt(SUMMED)).reshape(shape)


def seeded(*parts: int | str) -> Normal:
    """From a seed and what names the use: whoever knows them can take the noise away."""
    words = [int.from_bytes(str(part).encode().ljust(8, b"\0"), "little") for part in parts]
    generator = np.random.default_rng(words)
    return lambda shape: torch.from_numpy(generator.standard_normal(shape))
