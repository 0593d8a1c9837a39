"""Measure how far the spectra of two models are apart; a spectrum is the magnitudes of the weights' Fourier transform.

A student differs little from its teacher, so a difference of their spectra would consist of rounding errors. But the
transform is linear: that of the difference of the weights is exact. With z and c the transforms of student and teacher
and s and t their magnitudes, s^2 - t^2 is the real part of (z - c) times the conjugate of (z + c). That over s + t is
s - t, and the logarithm of s / t is log1p((s - t) / t).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ..core import Params
from ._divergences import DIVERGENCES, Divergence, Sums
from ._fourier import Transform, count_bins, make_transform, next_smooth_length

EPSILON = 1e-8  # Added (squared) to squared magnitudes: no logarithm of 0, and a root that is smooth at 0.
PIECE = 2**16  # bins that are worked on at a time: they stay in the cache, and are added in single precision

SCOPES = ("vector", "layer")
PADS = ("exact", "smooth")

# ---------------------------------------------------------------------------------------------------------------------
# A dimension for clients may come first in all tensors.


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of tensors in one vector with its padding, the transforms of its parts, and the bins that count."""

    shapes: list[torch.Size]
    starts: list[int]  # of the tensors in the vector
    gaps: list[slice]  # padding
    transforms: list[Transform]
    times: Tensor  # [entries], the bins that each entry stands for
    weight: Tensor  # [entries], the same for entries to which an inverse transform adds their mirror images
    bins: int
    divergence: Callable[[Sums], Divergence]

    def vector(self, params: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Tensor:
        """Return params as a vector, or what they differ by from others."""
        clients = params[0].shape[: params[0].ndim - len(self.shapes[0])]
        out = self.times.new_empty(*clients, sum(t.length for t in self.transforms))
        for place, v, other in zip_longest(self.places(out), params, others):
            place.copy_(v) if other is None else torch.sub(v, other, out=place)
        for gap in self.gaps:
            out[..., gap] = 0
        return out

    def places(self, vector: Tensor) -> list[Tensor]:
        """Return the views of a vector that are the tensors."""
        each = zip(self.starts, self.shapes, strict=True)
        return [vector[..., at : at + shape.numel()].view(*vector.shape[:-1], *shape) for at, shape in each]

    def transform(self, vector: Tensor) -> Tensor:
        """Return the transforms of all parts, real and imaginary part of each entry."""
        parts = vector.split([t.length for t in self.transforms], -1)
        return torch.view_as_real(_join([t(part).flatten(-2) for t, part in zip(self.transforms, parts, strict=True)]))

    def back(self, waves: Tensor) -> Tensor:
        """Return the vector of complex entries."""
        parts = waves.split([t.twiddle.numel() for t in self.transforms], -1)
        each = zip(self.transforms, parts, strict=True)
        return _join([t.back(part.unflatten(-1, t.twiddle.mT.shape)) for t, part in each])


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _sum_pairs(pairs: Tensor) -> Tensor:
    """Return the sum of each real and imaginary part."""
    return pairs[..., 0] + pairs[..., 1]


def _magnitudes(z: Tensor) -> Tensor:
    return _sum_pairs(z * z).add_(EPSILON**2).sqrt_()


def _sum64(sums: Sequence[Tensor]) -> Tensor:
    """Return the sum of the sums of pieces, in double precision."""
    return torch.stack(list(sums)).sum(0, dtype=torch.float64)


class _Piece(NamedTuple):
    """A piece of the bins of a student beside those of its teacher."""

    s: Tensor
    ratio: Tensor  # log(s / t)
    gain: Tensor  # sum of s - t
    score: Tensor  # sum of s log(s / t)


def _compare(z: Tensor, c: Tensor, t: Tensor, times: Tensor) -> _Piece:
    """Compare a piece of two spectra.

    Args:
        z: transform of what the student's weights differ by from the teacher's; the student's own afterwards.
        c: transform of the teacher's weights.
        t: magnitudes of ``c``.
        times: the bins that each entry stands for.
    """
    apart = _sum_pairs(torch.add(z, c, alpha=2).mul_(z))  # s^2 - t^2
    z += c
    s = _magnitudes(z)
    gain = apart.div_(s + t)  # s - t
    added = torch.linalg.vecdot(times, gain)
    ratio = gain.div_(t).clamp_(min=torch.finfo(t.dtype).eps / 2 - 1).log1p_()
    return _Piece(s, ratio, added, torch.linalg.vecdot(times * s, ratio))


class _Teacher(Function):
    """The transform of a teacher, its magnitudes, and their sum over all bins that count."""

    @staticmethod
    def forward(layout: Layout, *params: Tensor) -> tuple[Tensor, ...]:
        c = layout.transform(layout.vector(params))
        t = _magnitudes(c)
        each = zip(layout.times.split(PIECE), t.split(PIECE, -1), strict=True)
        return c, t, _sum64([torch.linalg.vecdot(times, piece) for times, piece in each])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], layout: Layout, *tensors: Tensor) -> tuple[Any, Any]:
        return _Teacher.apply(layout, *_stacked(info, in_dims[1:], tensors)), (0, 0, 0)  # type: ignore[no-untyped-call]


class _Distance(Function):
    """A divergence of a student from its teacher, computed together with its gradient by the student's vector."""

    @staticmethod
    def forward(layout: Layout, c: Tensor, t: Tensor, mass: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        teacher, student = tensors[: len(layout.shapes)], tensors[len(layout.shapes) :]
        z = layout.transform(layout.vector(student, teacher))
        parts = z.split(PIECE, -2)
        pieces = list(map(_compare, parts, c.split(PIECE, -2), t.split(PIECE, -1), layout.times.split(PIECE)))
        gain, score = (_sum64(sums) for sums in zip(*((piece.gain, piece.score) for piece in pieces), strict=True))
        value, shift, scale = layout.divergence(Sums(mass, gain, score, layout.bins))
        shift = shift.to(t.dtype)[..., None]
        for part, piece, weight in zip(parts, pieces, layout.weight.split(PIECE), strict=True):
            torch.view_as_complex(part).mul_(piece.ratio.add_(shift).mul_(weight).div_(piece.s))
        waves = torch.view_as_complex(z)
        return value.to(t.dtype), layout.back(waves), scale.to(t.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.layout = inputs[0]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, by: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradient, scale = ctx.saved_tensors
        fixed = [None] * (4 + len(ctx.layout.shapes))
        return *fixed, *ctx.layout.places((by * scale)[..., None] * gradient)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], layout: Layout, *tensors: Tensor) -> tuple[Any, Any]:
        return _Distance.apply(layout, *_stacked(info, in_dims[1:], tensors)), (0, 0, 0)  # type: ignore[no-untyped-call]


def _stacked(info: Any, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with clients first."""
    each = zip(tensors, dims, strict=True)
    return [v.expand(info.batch_size, *v.shape) if at is None else v.movedim(at, 0) for v, at in each]


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
    layout = _layout([teacher[name] for name in names], divergence, tau, scope, pad)
    weights = [teacher[name].detach() for name in names]
    known = _Teacher.apply(layout, *weights)  # type: ignore[no-untyped-call]

    def of(student: Params) -> Tensor:
        value: Tensor = _Distance.apply(layout, *known, *weights, *(student[name] for name in names))[0]  # type: ignore[no-untyped-call]
        return value

    return of


def _layout(tensors: Sequence[Tensor], divergence: str, tau: float, scope: str, pad: str) -> Layout:
    parts = [list(tensors)] if scope == "vector" else [[v] for v in tensors]
    starts, gaps, transforms, at = [], [], [], 0
    for part in parts:
        sizes = [v.numel() for v in part]
        starts += [at + sum(sizes[:i]) for i in range(len(sizes))]
        length = next_smooth_length(sum(sizes)) if pad == "smooth" else sum(sizes)
        transforms.append(make_transform(length, part[0].dtype, part[0].device))
        gaps.append(slice(at + sum(sizes), at + length))
        at += length
    firsts = [math.ceil(round(tau * t.length, 6)) for t in transforms]  # Rounded first, because 0.07 * 100 is above 7.
    counts = [count_bins(t, first) for t, first in zip(transforms, firsts, strict=True)]
    weights = [times * (1 + t.lone) / 2 for times, t in zip(counts, transforms, strict=True)]
    times, weight = (_join([v.flatten() for v in each]) for each in (counts, weights))
    shapes = [v.shape for v in tensors]
    return Layout(shapes, starts, gaps, transforms, times, weight, sum(firsts), DIVERGENCES[divergence])
