"""FedAvg-FT. Collins et al., NeurIPS 2022. https://arxiv.org/abs/2205.13692

client:  w_k = SGD(w_t; D_k), sent;  v_k = SGD'(w_t; D_k), kept: the client's own model
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

The paper fine-tunes once, after the last round; here it is done in every round, so that every round can be judged.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core import SGD, Client, Key, Optimiser, Params, Round, Traits
from .fedavg import Averaging, Global, Update
from .local import State


@dataclass(frozen=True)
class FedAvgFT(Averaging[State]):
    finetune: Optimiser = field(
        default=SGD(epochs=10),
        metadata={"about": "fine-tuning of the received average", "source": "chosen here: twice the local epochs"},
    )

    traits: ClassVar[Traits] = Averaging.traits._replace(wait_free={})

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        return self.train(down, client, k), state

    def after_upload(self, down: Global, up: Update, state: State, client: Client, r: Round, k: Key) -> State:
        return State(self.finetune.fit(client.objective(), down.params, client, k))

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else down.params

    def reduces_to(self) -> str | None:
        if self.finetune == self.optim and not self.regularisers:
            return "With finetune equal to optim the personal models are FedAvg's after local training."
        return None
