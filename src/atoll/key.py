"""Randomness as a value: a key is a number, and drawing from it changes nothing.

The same (seed, round, client, purpose) gives the same numbers on every backend, in any order and under vmap, where
generators are not allowed. Not cryptographic: never a source of privacy noise.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor

Key = Tensor  # int64, shape []; what is drawn from keys of another shape has it in front, with an entry for each

# Odd 64-bit constants of the splitmix64 generator, as signed integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_LARGEST = 2**63 - 1


def key(*parts: int | str) -> Key:
    """A stable key from what names its use, such as ``key(seed, round, client)``."""
    return torch.tensor(_number(parts))


def keys(uses: Iterable[tuple[int | str, ...]]) -> Tensor:
    """The keys of several uses in one tensor."""
    return torch.tensor([_number(parts) for parts in uses])


def _number(parts: tuple[int | str, ...]) -> int:
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in parts])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def fold(k: Key, i: int | Tensor) -> Key:
    """An independent sub-stream of ``k``, one for each ``i``: a phase, an epoch, a use. Several ``i`` give as many."""
    step, mixed = (i + 1) * _STEP, _mix(k ^ _STEP)
    return _mix(_beside(mixed, step.ndim) + step if isinstance(step, Tensor) else mixed + _wrapped(step))


def bits(k: Key, *shape: int) -> Tensor:
    """63 random bits each. Prefix-stable: ``bits(k, 5)[:3]`` equals ``bits(k, 3)``, so padding disturbs nothing."""
    counters = torch.arange(math.prod(shape), device=k.device).reshape(shape)
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


def permutation(k: Key, size: int, n: Tensor | int | None = None) -> Tensor:
    """A shuffle of ``range(size)``; given ``n``, the positions from ``n`` on (padding) come last."""
    order = bits(k, size)
    if n is not None:
        most = n[..., None] if isinstance(n, Tensor) else n
        order = torch.where(torch.arange(size, device=k.device) < most, order, _LARGEST)
    return order.argsort(stable=True)


def seed_of(k: Key) -> int:
    """A plain number for libraries that want a seed."""
    return int(k) & 0x7FFFFFFF


def _beside(k: Key, dimensions: int) -> Tensor:
    """Keys in front of so many dimensions."""
    return k.reshape(k.shape + (1,) * dimensions)


def _wrapped(i: int) -> int:
    """``i`` modulo 2**64 as a signed integer, so that it can meet an int64 tensor."""
    return (i + 2**63) % 2**64 - 2**63


def _mix(z: Tensor) -> Tensor:
    """The splitmix64 finaliser on wrapping int64; the masks make the shifts logical."""
    z = (z >> 30).bitwise_and_(0x3FFFFFFFF).bitwise_xor_(z).mul_(_MIX_1)
    z = (z >> 27).bitwise_and_(0x1FFFFFFFFF).bitwise_xor_(z).mul_(_MIX_2)
    return (z >> 31).bitwise_and_(0x1FFFFFFFF).bitwise_xor_(z)
