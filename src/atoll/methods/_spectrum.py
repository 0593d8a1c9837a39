"""Spectra of models: the magnitudes of the Fourier transform of all weights in a row, and how far two are apart.

A transform of ten million weights waits for memory, not for arithmetic, so it is done in two steps on a matrix whose
rows and columns fit into the cache. Its bins come out in another order, which a sum over bins does not notice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..core import Params

EPS = 1e-8  # added (squared) to squared magnitudes: no logarithm of 0, and a root that is smooth at 0
ROWS = 512  # the most rows of the matrix: enough for its own rows to be short

# ---------------------------------------------------------------------------------------------------------------------
# How far magnitudes s are from a teacher's, t: the value, and its slope by s. Each entry stands for so many (``times``)
# of the bins; ``mass`` is the sum of the teacher's.


def kl_sum1(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """sum_k p_k log(p_k / q_k) of the spectra p and q divided by their sums."""
    ratio, weighted = (s / t).log(), times * s
    own = _total(weighted)
    mean = _total(weighted * ratio) / own
    return mean - (own / mass).log(), times * (ratio - mean.to(s.dtype)) / own.to(s.dtype)


def gen_kl(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """mean_k s_k log(s_k / t_k) - s_k + t_k."""
    ratio = (s / t).log()
    return _total(times * (s * ratio - s + t)) / bins, times * ratio / bins


def raw(s: Tensor, t: Tensor, times: Tensor, mass: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """sum_k s_k log(s_k / t_k); least at s = t / e, not at s = t."""
    ratio = (s / t).log()
    return _total(times * s * ratio), times * (ratio + 1)


DIVERGENCES = {"kl_sum1": kl_sum1, "gen_kl": gen_kl, "raw": raw}
SCOPES = ("vector", "layer")
PADS = ("exact", "smooth")


def _total(v: Tensor) -> Tensor:
    return v.sum(dtype=torch.float64)


class _Scored(Function):
    """A divergence with the slope it brings along."""

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


@dataclass(frozen=True)
class Transform:
    """The Fourier transform of real vectors of ``rows * columns`` entries.

    Row ``i`` and column ``j`` of the result are bin ``i + rows * j``. The rows above half are left out: they mirror
    those below. What has no mirror image there, the first row and that at the half, holds the mirrors of its own bins.
    """

    rows: int
    columns: int
    twiddle: Tensor  # [rows // 2 + 1, columns], exp(-2 pi sqrt(-1) i j / length)
    lone: Tensor  # [rows // 2 + 1, 1], 1 for the rows without mirror image, or else 0

    def __call__(self, v: Tensor) -> Tensor:
        inner = torch.fft.rfft(v.reshape(self.rows, self.columns), dim=-2) * self.twiddle
        out: Tensor = torch.fft.fft(inner, dim=-1)
        return out

    def back(self, y: Tensor) -> Tensor:
        """The inverse, without division by the length."""
        inner = torch.fft.ifft(y, dim=-1, norm="forward") * self.twiddle.conj()
        out: Tensor = torch.fft.irfft(inner, n=self.rows, dim=-2, norm="forward").reshape(-1)
        return out

    def bins(self) -> Tensor:
        """The bin of each entry."""
        row, column = (torch.arange(n, device=self.twiddle.device) for n in self.twiddle.shape)
        return row[:, None] + self.rows * column

    def times(self, first: int) -> Tensor:
        """How many of the ``first`` bins each entry stands for; bins with two entries are shared between them."""
        bins = self.bins()
        inside = (bins < first).to(self.lone.dtype) + (-bins % (self.rows * self.columns) < first)
        return inside / (1 + self.lone)


def transform(length: int, dtype: torch.dtype, device: torch.device | None = None) -> Transform:
    """The transform of vectors of ``length`` entries, fast if no factor of it is large."""
    rows = max(r for r in range(1, ROWS + 1) if length % r == 0)
    column, row = torch.arange(length // rows, device=device), torch.arange(rows // 2 + 1, device=device)
    angle = (column[:, None] * row).double() * (-2 * math.pi / length)
    twiddle = torch.polar(torch.ones_like(angle), angle).to(dtype.to_complex())
    lone = ((row == 0) | (2 * row == rows)).to(dtype)[:, None]
    return Transform(rows, len(column), twiddle.T, lone)  # column after column in memory, as rfft leaves its result


def smooth(n: int) -> int:
    """The smallest length from ``n`` on without prime factors above 5."""
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


class _Magnitudes(Function):
    """sqrt(|z|^2 + EPS^2) of a transform; the gradient is one inverse, half as long as the complex one torch takes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, transform: Transform) -> tuple[Tensor, Tensor]:
        z = transform(v)
        return (z.real.square() + z.imag.square() + EPS**2).sqrt(), z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Transform], output: tuple[Tensor, Tensor]) -> None:
        ctx.transform = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor, None]:
        s, z = ctx.saved_tensors
        waves = slope / s * ((1 + ctx.transform.lone) / 2) * z  # the inverse adds the mirror images
        return ctx.transform.back(waves), None


def magnitudes(v: Tensor, transform: Transform) -> Tensor:
    """The spectrum of a vector, in the order of the transform."""
    s: Tensor = _Magnitudes.apply(v, transform)[0]  # type: ignore[no-untyped-call]
    return s


# ---------------------------------------------------------------------------------------------------------------------
# Models


def distance(
    teacher: Params,
    names: Sequence[str],
    divergence: str = "kl_sum1",
    tau: float = 1.0,
    scope: str = "vector",
    pad: str = "smooth",
) -> Callable[[Params], Tensor]:
    """The divergence of a student's spectrum from the teacher's, as a function of the student.

    The weights are taken in the order of ``names``, row-major: in one vector, or each tensor (layer) by itself. Of each
    vector's spectrum the first ceil(tau * length) bins count; a smooth length, by padding with zeros, is fast.
    """
    pieces = [list(names)] if scope == "vector" else [[name] for name in names]
    some = teacher[names[0]]
    sizes = [sum(teacher[name].numel() for name in piece) for piece in pieces]
    lengths = [smooth(size) for size in sizes] if pad == "smooth" else sizes
    fill = [some.new_zeros(length - size) for length, size in zip(lengths, sizes, strict=True)]
    transforms = [transform(length, some.dtype, some.device) for length in lengths]
    firsts = [math.ceil(round(tau * length, 6)) for length in lengths]  # rounded: 0.07 * 100 is above 7
    times = torch.cat([t.times(first).flatten() for t, first in zip(transforms, firsts, strict=True)])
    score = partial(DIVERGENCES[divergence], bins=sum(firsts))

    def spectrum(params: Params) -> Tensor:
        parts = []
        for piece, zeros, t in zip(pieces, fill, transforms, strict=True):
            vector = torch.cat([*(params[name].reshape(-1) for name in piece), zeros])
            parts.append(magnitudes(vector, t).flatten())
        return torch.cat(parts)

    reference = spectrum(teacher)
    mass = _total(times * reference)

    def of(student: Params) -> Tensor:
        value: Tensor = _Scored.apply(spectrum(student), reference, times, mass, score)[0]  # type: ignore[no-untyped-call]
        return value

    return of
