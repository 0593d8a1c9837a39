"""Divergences of a student's magnitudes s from a teacher's magnitudes t, by sums over bins in double precision."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """Sums over bins that all divergences are made of."""

    mass: Tensor  # of t
    gain: Tensor  # of s - t
    score: Tensor  # of s log(s / t)
    bins: int


class Divergence(NamedTuple):
    """A value, and the two numbers of its gradient by s, which is scale * (log(s / t) + shift)."""

    value: Tensor
    shift: Tensor
    scale: Tensor


def kl_sum1(of: Sums) -> Divergence:
    """Return sum_k p_k log(p_k / q_k), p and q being the spectra divided by their sums."""
    own = of.mass + of.gain
    mean = of.score / own
    return Divergence(mean - (of.gain / of.mass).log1p(), -mean, 1 / own)


def gen_kl(of: Sums) -> Divergence:
    """Return mean_k s_k log(s_k / t_k) - s_k + t_k."""
    one = torch.ones_like(of.score)
    return Divergence((of.score - of.gain) / of.bins, 0 * one, one / of.bins)


def raw(of: Sums) -> Divergence:
    """Return sum_k s_k log(s_k / t_k), which is least at s = t / e and not at s = t."""
    one = torch.ones_like(of.score)
    return Divergence(of.score, one, one)


DIVERGENCES: dict[str, Callable[[Sums], Divergence]] = {"kl_sum1": kl_sum1, "gen_kl": gen_kl, "raw": raw}
