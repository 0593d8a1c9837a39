"""Measure how far the spectra of two models are apart; a spectrum is the magnitudes of the weights' Fourier transform.

Memory, not arithmetic, limits a transform of ten million weights. So the transform is done in two steps on a matrix
whose rows and columns fit into the cache. Its bins come out in another order, which does not change sums over bins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..core import Params

EPSILON = 1e-8  # Added (squared) to squared magnitudes: no logarithm of 0, and a root that is smooth at 0.
KEPT = 8  # transforms that are kept: one for each architecture, or for each layer of a small one
MAX_ROWS = 512  # Enough rows to make each row of the matrix short.

# ---------------------------------------------------------------------------------------------------------------------
# Divergences of magnitudes s from a teacher's magnitudes t: the value and its gradient by s. ``times`` is the number of
# bins that each entry stands for; ``mass`` is the sum of the teacher's magnitudes over all bins.


def kl_sum1(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return sum_k p_k log(p_k / q_k), p and q being the spectra divided by their sums, and its gradient."""
    ratio, weighted = (s / t).log(), times * s
    own = _sum64(weighted)
    mean = _sum64(weighted * ratio) / own
    return mean - (own / mass).log(), times * (ratio - mean.to(s.dtype)) / own.to(s.dtype)


def gen_kl(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return mean_k s_k log(s_k / t_k) - s_k + t_k, and its gradient."""
    ratio = (s / t).log()
    return _sum64(times * (s * ratio - s + t)) / bins, times * ratio / bins


def raw(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return sum_k s_k log(s_k / t_k), which is least at s = t / e and not at s = t, and its gradient."""
    ratio = (s / t).log()
    return _sum64(times * s * ratio), times * (ratio + 1)


DIVERGENCES = {"kl_sum1": kl_sum1, "gen_kl": gen_kl, "raw": raw}
SCOPES = ("vector", "layer")
PADS = ("exact", "smooth")


def _sum64(v: Tensor) -> Tensor:
    return v.sum(dtype=torch.float64)


class _WithSlope(Function):
    """A divergence whose gradient is computed together with its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, score: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        value, slope = score(s, t, times, mass)
        return value.to(s.dtype), slope

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, by: Tensor, _: Any) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return by * slope, None, None, None, None


# ---------------------------------------------------------------------------------------------------------------------
# Transforms


@dataclass(frozen=True, eq=False)
class Transform:
    """Fourier transform of real vectors of ``rows * columns`` entries.

    Row ``i`` and column ``j`` of the result are bin ``i + rows * j``. The rows in the upper half are left out: they
    mirror those in the lower half. The first row and the middle row have no mirror image among the others; each
    contains the mirror images of its own bins.
    """

    rows: int
    columns: int
    twiddle: Tensor  # [rows // 2 + 1, columns], exp(-2 pi sqrt(-1) i j / length)
    lone: Tensor  # [rows // 2 + 1, 1], 1 for the rows without mirror image, 0 for the others

    def __call__(self, v: Tensor) -> Tensor:
        inner = torch.fft.rfft(v.reshape(self.rows, self.columns), dim=-2) * self.twiddle
        out: Tensor = torch.fft.fft(inner, dim=-1)
        return out

    def back(self, y: Tensor) -> Tensor:
        """Return the inverse transform, without division by the length."""
        inner = torch.fft.ifft(y, dim=-1, norm="forward") * self.twiddle.conj()
        out: Tensor = torch.fft.irfft(inner, n=self.rows, dim=-2, norm="forward").reshape(-1)
        return out

    def bins(self) -> Tensor:
        """Return the bin of each entry."""
        row, column = (torch.arange(n, device=self.twiddle.device) for n in self.twiddle.shape)
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
    return Transform(rows, len(column), twiddle.T, lone)  # Column-major in memory, like the result of rfft.


@lru_cache(maxsize=KEPT)
def count_bins(transform: Transform, first: int) -> Tensor:
    """Return how many of the ``first`` bins each entry stands for; two entries of one bin count half each."""
    bins = transform.bins()
    inside = (bins < first).to(transform.lone.dtype) + (-bins % (transform.rows * transform.columns) < first)
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


class _Magnitudes(Function):
    """sqrt(|z|^2 + EPSILON^2) of a transform z.

    The gradient takes one inverse transform, half as long as the complex one that torch would take.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, transform: Transform) -> tuple[Tensor, Tensor]:
        z = transform(v)
        return z.real.square().add_(z.imag.square()).add_(EPSILON**2).sqrt_(), z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Transform], output: tuple[Tensor, Tensor]) -> None:
        ctx.transform = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor, None]:
        s, z = ctx.saved_tensors
        waves = (slope / s).mul_((1 + ctx.transform.lone) / 2) * z  # The inverse adds the mirror images.
        return ctx.transform.back(waves), None


def magnitudes(v: Tensor, transform: Transform) -> Tensor:
    """Return the spectrum of a vector, in the order of the transform."""
    s: Tensor = _Magnitudes.apply(v, transform)[0]  # type: ignore[no-untyped-call]
    return s


# ---------------------------------------------------------------------------------------------------------------------
# Models


def spectral_distance(
    teacher: Params,
    names: Sequence[str],
    divergence: str = "kl_sum1",
    tau: float = 1.0,
    scope: str = "vector",
    pad: str = "smooth",
) -> Callable[[Params], Tensor]:
    """Return the divergence of a student's spectrum from the teacher's, as a function of the student.

    Args:
        teacher: the teacher's weights.
        names: the weights to compare, in the order in which they form a vector (row-major).
        divergence: a key of ``DIVERGENCES``.
        tau: share of the bins that count: the first ceil(tau * length) of each spectrum.
        scope: ``"vector"`` transforms all weights at once, ``"layer"`` each tensor by itself.
        pad: ``"smooth"`` pads with zeros to a length that is fast to transform; ``"exact"`` does not pad.
    """
    pieces = [list(names)] if scope == "vector" else [[name] for name in names]
    some = teacher[names[0]]
    sizes = [sum(teacher[name].numel() for name in piece) for piece in pieces]
    lengths = [next_smooth_length(size) for size in sizes] if pad == "smooth" else sizes
    fill = [some.new_zeros(length - size) for length, size in zip(lengths, sizes, strict=True)]
    transforms = [make_transform(length, some.dtype, some.device) for length in lengths]
    firsts = [math.ceil(round(tau * length, 6)) for length in lengths]  # Rounded first, because 0.07 * 100 is above 7.
    times = torch.cat([count_bins(t, first).flatten() for t, first in zip(transforms, firsts, strict=True)])
    score = partial(DIVERGENCES[divergence], bins=sum(firsts))

    def spectrum(params: Params) -> Tensor:
        parts = []
        for piece, zeros, t in zip(pieces, fill, transforms, strict=True):
            vector = torch.cat([*(params[name].reshape(-1) for name in piece), zeros])
            parts.append(magnitudes(vector, t).flatten())
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    reference = spectrum(teacher)
    mass = _sum64(times * reference)

    def of(student: Params) -> Tensor:
        value: Tensor = _WithSlope.apply(spectrum(student), reference, times, mass, score)[0]  # type: ignore[no-untyped-call]
        return value

    return of
