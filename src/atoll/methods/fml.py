"""FML. Shen et al., arXiv 2020. https://arxiv.org/abs/2006.16765

client:  on every batch, in one step of both models;  p, q: predictions of w_k and of m
         w_k <- argmin alpha CE(w_k) + (1 - alpha) KL(q || p), from where it stopped
         m_k  = argmin beta CE(m) + (1 - beta) KL(p || q), from m_t;   up: m_k, the "meme" model
server:  m_{t+1} = sum_k n_k m_k / sum_k n_k, over the clients of the round

Each prediction is a constant to the other model's loss, and divergences are means over samples: public libraries let
both losses flow into both models, and divide by the number of classes too. The released code averages equally (uniform)
and has no temperature; at one other than 1 the divergence counts times its square.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Client, Key, Params, Round, Step, Traits, cross_entropy, setting, within
from ._mutual_learning import Mutual, Shared, Update, kl_from_peer, train_both
from .local import State


@dataclass(frozen=True)
class FML(Mutual[State]):
    alpha: float = setting(0.5, "weight of the labels for the own model, the rest being its peer's", "public code")
    beta: float = setting(0.5, "weight of the labels for the shared model", "public code")
    temperature: float = setting(1.0, "temperature of both predictions", "1, that is none: paper and public code")

    traits: ClassVar[Traits] = Mutual.traits

    def __post_init__(self) -> None:
        within(self, 0, "alpha", "beta", high=1)
        within(self, 0.001, "temperature")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Shared, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        own, meme = train_both(self.optim, self.losses, state.params, down.params, client, k)
        return Update(meme, client.n), State(own)

    def losses(self, own: Step, meme: Step) -> tuple[Tensor, Tensor]:
        return self._mixed(self.alpha, own, meme), self._mixed(self.beta, meme, own)

    def _mixed(self, share: float, of: Step, peer: Step) -> Tensor:
        labels = share * cross_entropy(of.logits, of.batch)
        if share == 1:
            return labels
        return labels + (1 - share) * self.temperature**2 * kl_from_peer(of, peer, self.temperature)

    def personal_params(self, down: Shared, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def reduces_to(self) -> str | None:
        parts = []
        if self.alpha == 1:
            parts.append("With alpha = 1 the personal models are trained alone, as by Local.")
        if self.beta == 1:
            parts.append("With beta = 1 the shared model is FedAvg's.")
        return " ".join(parts) or None
