"""FedRep. Collins et al., ICML 2021, Algorithm 1. https://arxiv.org/abs/2102.07078

client:  1. h_k <- SGD(h; b_t fixed, D_k), from where it stopped
         2. b_k = SGD(b; h_k fixed, D_k), from b_t;   up: b_k
server:  b_{t+1} = sum_k n_k b_k / sum_k n_k, over the clients of the round

A fixed body is in evaluation mode, so that its running statistics stay too. Clients are judged after training, with
b_k, and before it, with the average they received, as the released code does; the head is their own either way.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core import SGD, Client, Key, Optimiser, Round, Traits, fold
from ._partial_model import Kept, Shared, Splitting, Update, fit_body, fit_head


@dataclass(frozen=True)
class FedRep(Splitting):
    optim: Optimiser = field(default=SGD(), metadata={"about": "training of the body"})
    head_optim: Optimiser = field(
        default=SGD(epochs=10), metadata={"about": "training of the head, before it", "source": "10 epochs: paper"}
    )

    traits: ClassVar[Traits] = Splitting.traits

    def client_update(self, down: Shared, state: Kept, client: Client, r: Round, k: Key) -> tuple[Update, Kept]:
        # The body uses the keys of epochs from 0 on, so the head has a key of its own.
        head = fit_head(self.head_optim, down.params, state.params, client, fold(k, -1))
        body = fit_body(self.optim, down.params, head, client, k)
        return Update(body, client.n), Kept(head)

    def reduces_to(self) -> str | None:
        if self.head_optim.count(1) == 0:
            return "With head_optim.epochs = 0 heads stay as they start; if they start equal, bodies are FedBABU's."
        return None
