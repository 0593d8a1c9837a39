"""FedAvg-FT. Collins et al., NeurIPS 2022. https://arxiv.org/abs/2205.13692

client:  w_k = SGD(w_t; D_k), sent;  v_k = SGD'(w_t; D_k), kept: the client's own model
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

The paper fine-tunes once, after the last round; here it is done in every round, so that every round can be judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..core import SGD, Client, Key, Optimiser, Params, objective
from .fedavg import Averaging, Global, Update
from .local import State


@dataclass(frozen=True)
class FedAvgFT(Averaging[State]):
    finetune: Optimiser = field(
        default=SGD(epochs=10),
        metadata={"about": "fine-tuning of the received average", "source": "chosen here: twice the local epochs"},
    )

    wait_free: ClassVar[Mapping[str, Any] | None] = {}

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def local(self, down: Global, state: State, client: Client, k: Key) -> tuple[Update, State]:
        return self.train(down, client, k), state

    def after_upload(self, down: Global, up: Update, state: State, client: Client, k: Key) -> State:
        return State(self.finetune.fit(objective(client.model), down.params, client, k))

    def own(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else down.params

    def reduces_to(self) -> str | None:
        if self.finetune == self.optim and not self.regularisers:
            return "With finetune equal to optim the personal models are FedAvg's after local training."
        return None
