"""Draw random numbers from keys: a key is a number, and drawing from it changes no state.

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

Key = Tensor  # int64, shape []. Draws from several keys have the shape of the keys in front.
Keys = TypeVar("Keys", Tensor, NDArray[np.int64])  # For few keys, numpy arrays (1-d or more) are faster than tensors.

# Odd 64-bit constants of the splitmix64 generator, as signed integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_LARGEST = 2**63 - 1
_SEPARATOR = "\x1f"  # between the parts of a name: the ASCII unit separator


def key(*parts: int | str) -> Key:
    """Return the key for a named use, the same on every machine.

    Args:
        parts: what the key is for; the number 1 and the string "1" give different keys.

    Example:
        >>> k = key(seed, round_index, client_id)
        >>> noise = normal(fold(k, 0), 3)
    """
    return torch.tensor(_to_int(blake2b(_SEPARATOR.join([_to_text(part) for part in parts]).encode(), digest_size=8)))


def keys(*parts: int | str, each: Iterable[str]) -> Tensor:
    """Return ``key(*parts, name)`` for each of the names, faster than one by one. Shape [names]."""
    begun = blake2b("".join([_to_text(part) + _SEPARATOR for part in parts]).encode(), digest_size=8)
    found = []
    for name in each:
        own = begun.copy()
        own.update(_to_text(name).encode())
        found.append(_to_int(own))
    return torch.tensor(found)


def _to_text(part: int | str) -> str:
    return f"{type(part).__name__}:{part}"


def _to_int(hashed: blake2b) -> int:
    return int.from_bytes(hashed.digest(), "little", signed=True)


def fold(k: Keys, i: int | Keys) -> Keys:
    """Return the key of an independent sub-stream of ``k``: one for each ``i``, such as an epoch or a use."""
    step, mixed = (i + 1) * _STEP, _mix(k ^ _STEP)
    return _mix(mixed + _wrap_int64(step) if isinstance(step, int) else _append_axes(mixed, step.ndim) + step)


def bits(k: Keys, *shape: int) -> Keys:
    """Return integers of 63 random bits.

    Prefix-stable: ``bits(k, 5)[:3]`` equals ``bits(k, 3)``, so that padding changes no earlier number.
    """
    return _bits_at(k, _count_to(math.prod(shape), k).reshape(shape))


def _bits_at(k: Keys, counters: Keys) -> Keys:
    """Return the random integers at some places of the sequence of a key."""
    return _mix(_mix(_append_axes(k, counters.ndim) + counters * _STEP)) & _LARGEST


def uniform(k: Key, *shape: int) -> Tensor:
    """Return floats strictly between 0 and 1."""
    return _to_uniform(bits(k, *shape))


def _to_uniform(integers: Tensor) -> Tensor:
    return (integers >> 40).float().add(0.5) / 2**23  # 24 significant bits hold the added half exactly.


def normal(k: Key, *shape: int) -> Tensor:
    """Return standard normal floats, by the Box-Muller transform."""
    return _to_normal(uniform(fold(k, 0), *shape), uniform(fold(k, 1), *shape))


def normal_columns(k: Key, rows: int, width: int, columns: Tensor) -> Tensor:
    """Return ``normal(k, rows, width)[:, columns]``, without drawing the other columns."""
    places = torch.arange(0, rows * width, width)[:, None] + columns
    return _to_normal(*(_to_uniform(_bits_at(fold(k, use), places)) for use in (0, 1)))


def _to_normal(one: Tensor, other: Tensor) -> Tensor:
    """Turn two uniform numbers into a normal one."""
    return (-2 * one.log()).sqrt() * (2 * math.pi * other).cos()


def randint(k: Key, high: int, *shape: int) -> Tensor:
    """Return integers in ``range(high)``; the modulo bias is below ``high / 2**63``."""
    return bits(k, *shape) % high


def permutation(k: Keys, size: int, n: Keys | int | None = None) -> Keys:
    """Return a permutation of ``range(size)``. Given ``n``, positions from ``n`` on (padding) come last, in order."""
    order: Any = bits(k, size)
    if n is not None:
        most = n if isinstance(n, int) else n[..., None]
        order = (torch if isinstance(order, Tensor) else np).where(_count_to(size, k) < most, order, _LARGEST)
    made: Any = order.argsort(stable=True) if isinstance(order, Tensor) else order.argsort(kind="stable")
    return made  # type: ignore[no-any-return]


def sample(k: Key, size: int, count: int) -> NDArray[np.int64]:
    """Return the first ``count`` entries of ``permutation(k, size)``, without sorting the others."""
    order = bits(np.array([int(k)]), size)[0]
    # Keys are uniform, so few more than ``count`` of them lie below this limit; seldom too few do.
    limit = (count + 4 * math.sqrt(count) + 16) / max(1, size)
    found = np.flatnonzero(order < int(limit * _LARGEST)) if limit < 1 else np.arange(size)
    if len(found) < count:
        found = np.arange(size)
    smallest: NDArray[np.int64] = found[order[found].argsort(kind="stable")[:count]]
    return smallest


def seed_of(k: Key) -> int:
    """Return a number from 0 to 2**31 - 1 for libraries that take a seed."""
    return int(k) & 0x7FFFFFFF


def _count_to(n: int, like: Keys) -> Keys:
    return torch.arange(n, device=like.device) if isinstance(like, Tensor) else np.arange(n)


def _append_axes(k: Keys, dimensions: int) -> Keys:
    """Append axes of length 1, so that keys broadcast against what is drawn from each."""
    return k.reshape(k.shape + (1,) * dimensions)


def _wrap_int64(i: int) -> int:
    """Return ``i`` modulo 2**64 as a signed 64-bit integer."""
    return (i + 2**63) % 2**64 - 2**63


def _mix(z: Keys) -> Keys:
    """Apply the splitmix64 finaliser to wrapping 64-bit integers; the masks make the shifts logical."""
    z = _xor_shift(z, 30, 0x3FFFFFFFF)
    z *= _MIX_1
    z = _xor_shift(z, 27, 0x1FFFFFFFFF)
    z *= _MIX_2
    return _xor_shift(z, 31, 0x1FFFFFFFF)


def _xor_shift(z: Keys, by: int, mask: int) -> Keys:
    """Return ``z ^ (z >> by)``, with a logical shift."""
    out = z >> by
    out &= mask
    out ^= z
    return out
