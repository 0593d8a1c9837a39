"""FedUV. Son et al., CVPR 2024. https://arxiv.org/abs/2402.18372

client:  w_k = argmin CE + lam_v L_V + lam_u L_U, from w_t
         L_V = mean_c max(0, gamma - std_i p_c(x_i)), p the predictions and gamma = C^(-1/2)
         L_U = mean_{i<j} exp(-||z_i - z_j||^2 / sigma), sigma the median of the distances above 0
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

gamma is the spread of labels if all C classes are equally frequent. As in the released code, features z are not
normalised, and gradients flow through sigma, the lower median. A batch with a single sample has no L_V, and one without
two different features no L_U: there the released code divides by zero.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Client, Need, Params, Regulariser, Regularisers, Step, Term, Traits, setting, within, wmean
from .fedavg import FedAvg


@dataclass(frozen=True)
class Strengths:
    """Settings that UV and FedUV share."""

    lam_v: float = setting(2.5, "strength of the variance of predictions", "public code")
    lam_u: float = setting(0.5, "strength of the uniformity of features", "public code")

    def __post_init__(self) -> None:
        within(self, 0, "lam_v", "lam_u")


@dataclass(frozen=True)
class UV(Strengths, Regulariser):
    """lam_v L_V + lam_u L_U."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLASSES})

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        def term(s: Step) -> Tensor:
            spread, crowd = variance(s.logits.softmax(1), s.batch.w), uniformity(s.features, s.batch.w)
            return self.lam_v * spread + self.lam_u * crowd

        return term


@dataclass(frozen=True)
class FedUV(Strengths, FedAvg):
    traits: ClassVar[Traits] = FedAvg.traits._replace(
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE}), private_training=False
    )

    def terms(self) -> Regularisers:
        own = UV(**{f.name: getattr(self, f.name) for f in fields(Strengths)})
        return Regularisers((*self.regularisers, own))

    def reduces_to(self) -> str | None:
        return "With lam_v = lam_u = 0 this is FedAvg." if self.lam_v == self.lam_u == 0 else None


def variance(p: Tensor, w: Tensor) -> Tensor:
    """Return L_V of the real rows of ``p``, those with ``w`` = 1."""
    n, real = w.sum(), w[:, None]
    centred = (p - (p * real).sum(0) / n.clamp(min=1)) * real
    std = (centred.square().sum(0) / (n - 1).clamp(min=1) + 1e-16).sqrt()  # Keeps the root smooth at 0.
    gamma = float(p.shape[1]) ** -0.5
    short: Tensor = (gamma - std).relu().mean()
    return short * (n > 1)


def uniformity(z: Tensor, w: Tensor) -> Tensor:
    """Return L_U of the real rows of ``z``, those with ``w`` = 1."""
    if len(z) < 2:
        return torch.zeros(())
    i, j = torch.triu_indices(len(z), len(z), 1, device=z.device)
    squared, real = (z[i] - z[j]).square().sum(1), w[i] * w[j]
    apart = (real > 0) & (squared > 0)
    sigma = lower_median(squared, apart)
    return wmean((-squared / sigma).exp(), real) * apart.any()


def lower_median(v: Tensor, among: Tensor) -> Tensor:
    """Return the lower median of the marked entries, or 1 if none is marked; without a branch, for vmap."""
    order = v.detach().masked_fill(~among, torch.inf).argsort()
    middle = order.gather(0, ((among.sum() - 1) // 2).clamp(min=0)[None])
    return torch.where(among.any(), v.gather(0, middle)[0], 1.0)
