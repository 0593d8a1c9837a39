"""LG-FedAvg. Liang et al., arXiv 2020. https://arxiv.org/abs/2001.01523

client:  (b_k, h_k) = SGD(b_k, h_t; D_k);   up: h_k;   the body b_k stays at home
server:  h_{t+1} = sum_k n_k h_k / sum_k n_k, over the clients of the round

Only the last layer is shared, as in comparisons of heterogeneous models, whose bodies may differ. The authors' code
shares other layers too, starts from a model trained by FedAvg and takes a plain mean: here all start anew, and samples
count.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import Need, Traits
from ._partial_model import Splitting


@dataclass(frozen=True)
class LGFedAvg(Splitting):
    traits: ClassVar[Traits] = Splitting.traits._replace(
        needs=frozenset({Need.SAME_WIDTH, Need.SEPARATE_HEAD}), private_training=True
    )
    shared: ClassVar[str] = "head"
