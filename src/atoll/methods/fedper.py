"""FedPer. Arivazhagan et al., arXiv 2019. https://arxiv.org/abs/1912.00818

client:  (b_k, h_k) = SGD(b_t, h_k; D_k);   up: b_k;   the head h_k stays at home
server:  b_{t+1} = sum_k n_k b_k / sum_k n_k, over the clients of the round

The head is the last layer; the paper also keeps the last residual blocks at home. Before training a client predicts
with the body it received, after training with the one it sends, and with its own head either way.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.traits import Traits
from ._partial_model import Splitting


@dataclass(frozen=True)
class FedPer(Splitting):
    traits: ClassVar[Traits] = Splitting.traits._replace(private_training=True)
