"""Randomness as a value: a key is a number, and drawing from it changes nothing.

The same (seed, round, client, purpose) gives the same numbers on every backend, in any order and under vmap, where
generators are not allowed. Not cryptographic: never a source of privacy noise.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Key = Tensor  # int64, shape []; what is drawn from keys of another shape has it in front, with an entry for each
Keys = TypeVar("Keys", Tensor, NDArray[np.int64])  # arrays of at least one dimension do as well, where they are faster

# Odd 64-bit constants of the splitmix64 generator, as signed integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_LARGEST = 2**63 - 1
_BETWEEN = "\x1f"  # the parts of a name: the unit separator


def key(*parts: int | str) -> Key:
    """A stable key from what names its use, such as ``key(seed, round, client)``."""
    return torch.tensor(_number(blake2b(_BETWEEN.join([_named(part) for part in parts]).encode(), digest_size=8)))


def keys(*parts: int | str, each: Iterable[str]) -> Tensor:
    """For each name, the key of these parts and the name."""
    begun = blake2b("".join([_named(part) + _BETWEEN for part in parts]).encode(), digest_size=8)
    found = []
    for name in each:
        own = begun.copy()
        own.update(_named(name).encode())
        found.append(_number(own))
    return torch.tensor(found)


def _named(part: int | str) -> str:
    return f"{type(part).__name__}:{part}"


def _number(hashed: blake2b) -> int:
    return int.from_bytes(hashed.digest(), "little", signed=True)


def fold(k: Keys, i: int | Keys) -> Keys:
    """An independent sub-stream of ``k``, one for each ``i``: a phase, an epoch, a use. Several ``i`` give as many."""
    step, mixed = (i + 1) * _STEP, _mix(k ^ _STEP)
    return _mix(mixed + _wrapped(step) if isinstance(step, int) else _beside(mixed, step.ndim) + step)


def bits(k: Keys, *shape: int) -> Keys:
    """63 random bits each. Prefix-stable: ``bits(k, 5)[:3]`` equals ``bits(k, 3)``, so padding disturbs nothing."""
    counters = _counted(math.prod(shape), k).reshape(shape)
    return _mix(_mix(_beside(k, len(shape)) + counters * _STEP)) & _LARGEST


def uniform(k: Key, *shape: int) -> Tensor:
    """Floats strictly between 0 and 1."""
    return (bits(k, *shape) >> 40).float().add(0.5) / 2**23  # 24 significant bits: the half is kept


def normal(k: Key, *shape: int) -> Tensor:
    """Standard normal floats, by the Box-Muller transform."""
    radius = (-2 * uniform(fold(k, 0), *shape).log()).sqrt()
    return radius * (2 * math.pi * uniform(fold(k, 1), *shape)).cos()


def randint(k: Key, high: int, *shape: int) -> Tensor:
    """Integers in ``range(high)``; the modulo bias is below ``high / 2**63``."""
    return bits(k, *shape) % high


def permutation(k: Keys, size: int, n: Keys | int | None = None) -> Keys:
    """A shuffle of ``range(size)``; given ``n``, the positions from ``n`` on (padding) come last."""
    order: Any = bits(k, size)
    if n is not None:
        most = n if isinstance(n, int) else n[..., None]
        order = (torch if isinstance(order, Tensor) else np).where(_counted(size, k) < most, order, _LARGEST)
    made: Any = order.argsort(stable=True) if isinstance(order, Tensor) else order.argsort(kind="stable")
    return made  # type: ignore[no-any-return]


def seed_of(k: Key) -> int:
    """A plain number for libraries that want a seed."""
    return int(k) & 0x7FFFFFFF


def _counted(n: int, beside: Keys) -> Keys:
    return torch.arange(n, device=beside.device) if isinstance(beside, Tensor) else np.arange(n)


def _beside(k: Keys, dimensions: int) -> Keys:
    """Keys in front of so many dimensions."""
    return k.reshape(k.shape + (1,) * dimensions)


def _wrapped(i: int) -> int:
    """``i`` modulo 2**64 as a signed integer, so that it can meet 64-bit ones."""
    return (i + 2**63) % 2**64 - 2**63


def _mix(z: Keys) -> Keys:
    """The splitmix64 finaliser on wrapping 64-bit integers; the masks make the shifts logical."""
    z = _shifted(z, 30, 0x3FFFFFFFF)
    z *= _MIX_1
    z = _shifted(z, 27, 0x1FFFFFFFFF)
    z *= _MIX_2
    return _shifted(z, 31, 0x1FFFFFFFF)


def _shifted(z: Keys, by: int, mask: int) -> Keys:
    """``z ^ (z >> by)``."""
    out = z >> by
    out &= mask
    out ^= z
    return out
