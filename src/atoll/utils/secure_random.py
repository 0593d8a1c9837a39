"""Gaussian noise for differential privacy: from the operating system's secure source, or from a seed for tests."""

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# A function from a shape to standard normal numbers of that shape, in double precision.
Normal = Callable[[tuple[int, ...]], Tensor]

SUMMED = 4  # normal numbers in each sample: their sum hides the gaps that a single double has


def secure(shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers from ``os.urandom`` by the Box-Muller transform."""
    size = math.prod(shape)
    pairs = -(-size * SUMMED // 2)
    words = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs)
    unit = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53  # strictly between 0 and 1
    radius, angle = np.sqrt(-2 * np.log(unit[0])), 2 * math.pi * unit[1]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: size * SUMMED]
    return torch.from_numpy(normal.reshape(SUMMED, size).sum(0) / math.sqrt(SUMMED)).reshape(shape)


def seeded(*parts: int | str) -> Normal:
    """Return a source of standard normal numbers that follows from ``parts``.

    Anyone who knows the parts can subtract the noise: for tests only.
    """
    words = [int.from_bytes(str(part).encode().ljust(8, b"\0"), "little") for part in parts]
    generator = np.random.default_rng(words)
    return lambda shape: torch.from_numpy(generator.standard_normal(shape))
