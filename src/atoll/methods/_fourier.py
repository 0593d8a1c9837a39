"""Fourier transforms of long real vectors.

Memory, not arithmetic, limits a transform of ten million weights. So the transform is done in two steps on a matrix
whose rows and columns fit into the cache. Its bins come out in another order, which does not change sums over bins.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

KEPT = 8  # transforms that are kept: one for each architecture, or for each layer of a small one
MAX_ROWS = 512  # Enough rows to make each row of the matrix short.


@dataclass(frozen=True, eq=False)
class Transform:
    """Fourier transform of real vectors of ``rows * columns`` entries; other dimensions come first.

    Row ``i`` and column ``j`` of the result are bin ``i + rows * j``. The rows in the upper half are left out: they
    mirror those in the lower half. The first row and the middle row have no mirror image among the others; each
    contains the mirror images of its own bins.
    """

    rows: int
    columns: int
    twiddle: Tensor  # [columns, rows // 2 + 1], exp(-2 pi sqrt(-1) i j / length)
    lone: Tensor  # [rows // 2 + 1, 1], 1 for the rows without mirror image, 0 for the others

    @property
    def length(self) -> int:
        return self.rows * self.columns

    def __call__(self, v: Tensor) -> Tensor:
        """Return the transform of each vector, ``[..., rows // 2 + 1, columns]``."""
        # Transposing first takes less time than a transform of columns, which jumps through memory. No name is given to
        # the copy, so that it is freed before the next one is made.
        inner = torch.fft.rfft(v.unflatten(-1, (self.rows, self.columns)).mT.contiguous()).mul_(self.twiddle)
        out: Tensor = torch.fft.fft(inner, dim=-2).mT
        return out

    def back(self, y: Tensor) -> Tensor:
        """Return the inverse transform of each ``[..., rows // 2 + 1, columns]``, without division by the length."""
        inner = torch.fft.ifft(y, norm="forward").mT.contiguous()
        # The product with the conjugate, which is not kept: it would take as much memory as a model.
        inner = inner.conj_physical_().mul_(self.twiddle).conj_physical_()
        columns = torch.fft.irfft(inner, n=self.rows, norm="forward")
        del inner
        out: Tensor = columns.mT.flatten(-2)
        return out

    def bins(self) -> Tensor:
        """Return the bin of each entry."""
        column, row = (torch.arange(n, device=self.twiddle.device) for n in self.twiddle.shape)
        return row[:, None] + self.rows * column


@lru_cache(maxsize=KEPT)
def make_transform(length: int, dtype: torch.dtype, device: torch.device | None = None) -> Transform:
    """Return the transform of vectors of ``length`` entries, fast if ``length`` has no large factor.

    Clients of one architecture have the same transform, which takes longer to make than to use.
    """
    rows = max(r for r in range(1, MAX_ROWS + 1) if length % r == 0)
    column, row = torch.arange(length // rows, device=device), torch.arange(rows // 2 + 1, device=device)
    angle = (column[:, None] * row).double() * (-2 * math.pi / length)
    twiddle = torch.polar(torch.ones_like(angle), angle).to(dtype.to_complex())
    lone = ((row == 0) | (2 * row == rows)).to(dtype)[:, None]
    return Transform(rows, len(column), twiddle, lone)


@lru_cache(maxsize=KEPT)
def count_bins(transform: Transform, first: int) -> Tensor:
    """Return how many of the ``first`` bins each entry stands for; two entries of one bin count half each."""
    bins = transform.bins()
    inside = (bins < first).to(transform.lone.dtype) + (-bins % transform.length < first)
    return inside / (1 + transform.lone)


def next_smooth_length(n: int) -> int:
    """Return the smallest length from ``n`` on without prime factors above 5."""
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1
