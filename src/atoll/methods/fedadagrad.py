"""FedAdagrad. Reddi et al., ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295

client:  x_k = SGD(x; D_k)
server:  delta = sum_k n_k (x_k - x) / sum_k n_k;   m <- beta1 m + (1 - beta1) delta
         v <- v + delta^2, from tau^2;   x <- x + eta m / (sqrt(v) + tau)

Clients count by their samples, as in the paper's experiments. Running statistics are averaged.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Traits, setting
from ._server_optimiser import AdaptiveServer


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    beta1: float = setting(0.0, "share of the last m that is kept", "paper")

    traits: ClassVar[Traits] = AdaptiveServer.traits

    def size(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
