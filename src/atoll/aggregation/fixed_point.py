"""Add up tensors in fixed point: sums have the same bits in any order, as secure aggregation needs.

A number x becomes the integer nearest to x * 2^24 (ties to even), and integers are added modulo 2^64. Sums of integers
are exact, so the order of replies has no effect, and masks that cancel leave no error. ``--sums fixed`` selects these
sums for servers that use sums of uploads alone.

This module is arithmetic, not a secure aggregation protocol: there is no key agreement, no secret sharing and no proof,
and in a run with ``--sums fixed`` the server still receives every upload. :class:`Masks` shows that masked sums equal
plain sums to the bit, also when clients drop out, so that a protocol could replace them. The sum of a single upload is
that upload.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from ..errors import AtollError
from ..typing import ClientId

SCALE = 2.0**24  # 24 fractional bits: a resolution of 6e-8
CAPACITY = 2.0**63  # The integers of a sum must stay below this.
SUMS = ("float", "fixed")


def quantise(v: Tensor) -> Tensor:
    """Return a tensor's numbers as fixed-point integers.

    Raises:
        AtollError: if a number is too large, or is NaN.
    """
    scaled = v.double() * SCALE
    if not bool((scaled.abs() < CAPACITY).all()):  # False for NaN too
        raise AtollError(_too_large(float(v.double().abs().max())))
    return scaled.round().long()


def dequantise(q: Tensor) -> Tensor:
    """Return the numbers of fixed-point integers, in double precision."""
    return q.double() / SCALE


def largest(mass: float) -> float:
    """Return the largest number allowed in a sum whose weights add up to ``mass``: half of the capacity."""
    return CAPACITY / SCALE / 2 / max(mass, 1.0)


def _too_large(value: float) -> str:
    return (
        f"--sums fixed can hold sums up to {CAPACITY / SCALE:.3g}, and a sum may reach {value:.3g}. "
        "Use --sums float, or find out why values grow so large: training may have diverged."
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sums on the server


class Fixed:
    """Mark a run whose sums are in fixed point, and report each kind of note once.

    Args:
        tell: called with the text of each note.
    """

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._reported: set[str] = set()

    def note(self, kind: str, words: str) -> None:
        """Report a note, unless one of this kind was reported before."""
        if kind not in self._reported:
            self._reported.add(kind)
            self._tell(f"--sums fixed: {words}")


class Sum:
    """A running sum of tensors of one shape.

    Args:
        fixed: add up in fixed point if given, otherwise in double precision.
    """

    def __init__(self, fixed: Fixed | None = None) -> None:
        self._fixed = fixed is not None
        self._total: Tensor | None = None
        self._reach = 0  # Bound on the entries' absolute values. An integer, so that it is exact in any order.

    def add(self, v: Tensor, weight: float = 1.0) -> None:
        """Add ``weight`` times a tensor."""
        if self._fixed:
            self._add_integers(quantise(v.double() * weight))
        elif self._total is None:
            self._total = v.to(torch.double, copy=True).mul_(weight)
        else:
            self._total.add_(v, alpha=weight)  # accumulates in double precision without converting ``v``

    def add_all(self, rows: Tensor, weights: Tensor) -> None:
        """Add tensors [K, ...] with weights [K], in one operation where sums are not in fixed point."""
        if self._fixed or len(rows) == 1:
            for row, weight in zip(rows, weights.tolist(), strict=True):
                self.add(row, weight)
        else:
            numbers = rows if rows.dtype in (torch.float, torch.double) else rows.double()
            # numpy converts to double precision during the sum; torch would convert a copy of all rows first.
            total = np.einsum("k,k...->...", weights.cpu().numpy(), numbers.cpu().numpy())
            self.add(torch.from_numpy(np.asarray(total)).to(rows.device))

    def _add_integers(self, part: Tensor) -> None:
        if part.numel():
            self._reach += int(part.abs().max())
            if self._reach >= CAPACITY:
                raise AtollError(_too_large(self._reach / SCALE))
        self._total = part if self._total is None else self._total.add_(part)

    def value(self) -> Tensor:
        """Return the sum in double precision. The tensor may be changed by later calls of :meth:`add`."""
        if self._total is None:
            return torch.zeros((), dtype=torch.double)
        return dequantise(self._total) if self._fixed else self._total


def total(parts: Iterable[Tensor], fixed: Fixed | None = None) -> Tensor:
    """Return the sum of tensors in double precision; 0 without tensors.

    Args:
        parts: tensors of one shape.
        fixed: add up in fixed point if given.
    """
    made = Sum(fixed)
    for part in parts:
        made.add(part)
    return made.value()


# ---------------------------------------------------------------------------------------------------------------------
# Masks that cancel


class Masks:
    """Masks for every pair of clients.

    Args:
        secret: common secret, in place of the keys on which pairs of clients would agree in a protocol.
        shape: shape of the masked tensors.
    """

    def __init__(self, secret: bytes, shape: tuple[int, ...]):
        self._secret = secret
        self._shape = shape

    def of(self, i: ClientId, others: Collection[ClientId]) -> Tensor:
        """Return the mask of client ``i``. Of each pair one client adds +m and the other -m, so the masks sum to 0."""
        out = torch.zeros(self._shape, dtype=torch.long)
        for j in others:
            if j != i:
                out = out + self._pair(i, j) if i < j else out - self._pair(j, i)
        return out

    def _pair(self, i: ClientId, j: ClientId) -> Tensor:
        """Expand the secret and both names by SHAKE-256. Length prefixes separate the two names."""
        names = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in (i, j))
        count = int(np.prod(self._shape, dtype=np.int64))
        stream = shake_256(len(self._secret).to_bytes(4, "little") + self._secret + names).digest(8 * count)
        return torch.from_numpy(np.frombuffer(stream, dtype="<i8").astype(np.int64)).reshape(self._shape)


def mask_upload(i: ClientId, v: Tensor, cohort: Collection[ClientId], masks: Masks) -> Tensor:
    """Return the masked upload of client ``i``: integers modulo 2^64, meaningless without the other masks.

    Args:
        i: the client.
        v: the tensor to upload.
        cohort: all clients of the round.
        masks: the masks of all pairs.
    """
    return quantise(v) + masks.of(i, cohort)


def unmasked_sum(sent: Mapping[ClientId, Tensor], cohort: Collection[ClientId], masks: Masks) -> Tensor:
    """Return the sum of the uploads that arrived, in double precision.

    Masks between two senders cancel. Masks shared with clients that dropped out are computed again and subtracted.

    Args:
        sent: masked uploads by client.
        cohort: all clients of the round.
        masks: the masks of all pairs.
    """
    dropped = [j for j in cohort if j not in sent]
    parts = [q - masks.of(i, dropped) for i, q in sent.items()]
    return dequantise(torch.stack(parts).sum(0))
