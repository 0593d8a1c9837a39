"""Sums in fixed point: the same bits in any order, and what secure aggregation needs.

A number x becomes the integer nearest to x * 2^24 (halfway: the even one), and integers are added modulo 2^64. Such
sums are exact, so the order of replies cannot matter, and masks that cancel leave nothing behind. ``--sums fixed`` lets
servers that work from sums add up in this way.

This is arithmetic, not a protocol. Nobody agrees on keys here, shares them, or proves anything; in a run with fixed
sums the server still receives every upload. What is shown is that masked sums, with clients dropping out, equal plain
ones to the bit, so that a protocol could stand in their place. A sum of one contributor is what that one sent.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from ..errors import AtollError
from ..typing import ClientId

SCALE = 2.0**24  # 24 bits behind the point: numbers are kept to 3e-8
CAPACITY = 2.0**63  # what the integers of a sum must stay below
SUMS = ("float", "fixed")


def quantised(v: Tensor) -> Tensor:
    """Integers for the numbers of a tensor; refused if one of them has none."""
    scaled = v.double() * SCALE
    if not bool((scaled.abs() < CAPACITY).all()):  # also if it is not a number
        raise AtollError(_too_large(float(v.double().abs().max())))
    return scaled.round().long()


def restored(q: Tensor) -> Tensor:
    return q.double() / SCALE


def largest(mass: float) -> float:
    """How large numbers may be, for a sum in which weights come to ``mass``: half of what there is room for."""
    return CAPACITY / SCALE / 2 / max(mass, 1.0)


def _too_large(value: float) -> str:
    return (
        f"--sums fixed has room for sums up to {CAPACITY / SCALE:.3g}, and there is {value:.3g}. "
        "Use --sums float, or find out why numbers grow so large."
    )


# ---------------------------------------------------------------------------------------------------------------------
# The sums of a server


class Fixed:
    """That sums are fixed in this run, and what there is to tell about it: each kind of note once."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell, self._told = tell, set[str]()

    def note(self, kind: str, words: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"--sums fixed: {words}")


class Sum:
    """A sum of tensors of one shape, of which one is held at a time.

    Args:
        fixed: adds up in fixed point if given, and otherwise in double precision.
    """

    def __init__(self, fixed: Fixed | None = None) -> None:
        self._fixed = fixed is not None
        self._total: Tensor | None = None
        self._reach = 0  # no entry of the sum can be further from 0; a whole number, so order does not matter to it

    def add(self, v: Tensor, weight: float = 1.0) -> None:
        """Add ``weight`` times a tensor."""
        if self._fixed:
            self._add_whole(quantised(v.double() * weight))
        elif self._total is None:
            self._total = v.to(torch.double, copy=True).mul_(weight)
        else:
            self._total.add_(v, alpha=weight)  # in double precision, without a copy of the tensor in it

    def add_all(self, rows: Tensor, weights: Tensor) -> None:
        """Add tensors that lie in a row, at once where that makes no difference to what is promised."""
        if self._fixed or len(rows) == 1:
            for row, weight in zip(rows, weights.tolist(), strict=True):
                self.add(row, weight)
        else:
            numbers = rows if rows.dtype in (torch.float, torch.double) else rows.double()
            # numpy turns numbers into double precision on the way, torch would make a copy of all of them first
            total = np.einsum("k,k...->...", weights.cpu().numpy(), numbers.cpu().numpy())
            self.add(torch.from_numpy(np.asarray(total)).to(rows.device))

    def _add_whole(self, part: Tensor) -> None:
        if part.numel():
            self._reach += int(part.abs().max())
            if self._reach >= CAPACITY:
                raise AtollError(_too_large(self._reach / SCALE))
        self._total = part if self._total is None else self._total.add_(part)

    def value(self) -> Tensor:
        """The sum, in double precision; further numbers would change it."""
        if self._total is None:
            return torch.zeros((), dtype=torch.double)
        return restored(self._total) if self._fixed else self._total


def total(parts: Iterable[Tensor], fixed: Fixed | None = None) -> Tensor:
    """Return the sum of tensors, in double precision, added up in fixed point if ``fixed``; 0 if there are none."""
    made = Sum(fixed)
    for part in parts:
        made.add(part)
    return made.value()


# ---------------------------------------------------------------------------------------------------------------------
# Masks that cancel


class Masks:
    """Masks of every pair of clients, drawn from a common secret in place of the keys that pairs would agree on."""

    def __init__(self, secret: bytes, shape: tuple[int, ...]):
        self._secret, self._shape = secret, shape

    def of(self, i: ClientId, others: Collection[ClientId]) -> Tensor:
        """What client ``i`` adds, so that all who add theirs add nothing: +m for one of a pair, -m for the other."""
        out = torch.zeros(self._shape, dtype=torch.long)
        for j in others:
            if j != i:
                out = out + self._pair(i, j) if i < j else out - self._pair(j, i)
        return out

    def _pair(self, i: ClientId, j: ClientId) -> Tensor:
        """SHAKE-256 as a stream, keyed with the secret and both names, whose lengths keep them apart."""
        names = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in (i, j))
        count = int(np.prod(self._shape, dtype=np.int64))
        stream = shake_256(len(self._secret).to_bytes(4, "little") + self._secret + names).digest(8 * count)
        return torch.from_numpy(np.frombuffer(stream, dtype="<i8").astype(np.int64)).reshape(self._shape)


def masked(i: ClientId, v: Tensor, cohort: Collection[ClientId], masks: Masks) -> Tensor:
    """What client ``i`` sends for ``v``: integers modulo 2^64 that say nothing without the masks of the others."""
    return quantised(v) + masks.of(i, cohort)


def unmasked_sum(sent: Mapping[ClientId, Tensor], cohort: Collection[ClientId], masks: Masks) -> Tensor:
    """The sum of those who sent something, in double precision.

    Masks between two of them cancel; those that they share with clients who dropped out are made again and taken away.
    """
    gone = [j for j in cohort if j not in sent]
    parts = [q - masks.of(i, gone) for i, q in sent.items()]
    return restored(torch.stack(parts).sum(0))
