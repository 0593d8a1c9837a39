"""FedYogi. Reddi et al., ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295

client:  x_k = SGD(x; D_k)
server:  delta = sum_k n_k (x_k - x) / sum_k n_k;   m <- beta1 m + (1 - beta1) delta
         v <- v - (1 - beta2) delta^2 sign(v - delta^2), from tau^2;   x <- x + eta m / (sqrt(v) + tau)

No bias correction, as in the paper; clients count by their samples, as in its experiments. Running statistics are
averaged.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Traits, setting, within
from ._server_optimiser import AdaptiveServer


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    beta2: float = setting(0.99, "1 - beta2 is the share of the squared change in a step of v", "paper")

    traits: ClassVar[Traits] = AdaptiveServer.traits

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0, "beta2", high=1)

    def size(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
