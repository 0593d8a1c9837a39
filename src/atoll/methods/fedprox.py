"""FedProx. Li et al., MLSys 2020, eq. (2). https://arxiv.org/abs/1812.06127

client:  w_k = argmin CE(w; D_k) + mu/2 ||w - w_t||^2, from w_t
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

The paper also lets slow clients stop early; here all train equally long. Running statistics are not pulled.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Client, Params, Regulariser, Regularisers, Step, Term, Traits, setting, sqnorm, sub, weights, within
from .fedavg import FedAvg


@dataclass(frozen=True)
class Proximal(Regulariser):
    """mu/2 ||w - anchor||^2; the anchor is the model that training starts from."""

    mu: float = setting(1.0, "strength of the pull to the global model", "best of the paper's grid for most data sets")

    def __post_init__(self) -> None:
        within(self, 0, "mu")

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        def term(s: Step) -> Tensor:
            return self.mu / 2 * sqnorm(sub(weights(s.params), anchor))

        return term


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = setting(1.0, "strength of the pull to the global model", "best of the paper's grid for most data sets")

    traits: ClassVar[Traits] = FedAvg.traits._replace(variants={"feddw": {"mu": 0.01}})  # the public code of FedDW

    def __post_init__(self) -> None:
        within(self, 0, "mu")

    def terms(self) -> Regularisers:
        return Regularisers((*self.regularisers, Proximal(self.mu)))

    def reduces_to(self) -> str | None:
        return "With mu = 0 this is FedAvg." if self.mu == 0 else None
