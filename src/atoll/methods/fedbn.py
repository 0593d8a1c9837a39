"""FedBN. Li et al., ICLR 2021, Algorithm 1. https://arxiv.org/abs/2102.07623

client:  (w_k, b_k) = SGD(w_t, b_k; D_k);   up: w_k;   BatchNorm b_k stays at home: weights, biases, running statistics
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k, over the clients of the round

The paper takes a plain mean over clients with equally many samples; here samples count. Before training a client
predicts with the weights it received, after training with those it sends, and with its own BatchNorm either way.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import BUFFERS, Client, Key, Model, Need, Params, Round, Task, Traits
from ._partial_model import Kept, Shared, Sharing, Update


@dataclass(frozen=True)
class FedBN(Sharing[Kept]):
    traits: ClassVar[Traits] = Sharing.traits._replace(needs=frozenset({Need.SAME_ARCHITECTURE, Need.BATCH_NORM}))

    def init_server(self, task: Task, k: Key) -> Shared:
        return Shared(_split(task.model.init(), task.model)[0])

    def init_client(self, client: Client, k: Key) -> Kept:
        return Kept(_split(client.model.init(), client.model)[1])

    def client_update(self, down: Shared, state: Kept, client: Client, r: Round, k: Key) -> tuple[Update, Kept]:
        params = self.optim.fit(client.objective(), self.personal_params(down, None, state, client), client, k)
        shared, own = _split(params, client.model)
        return Update(shared, client.n), Kept(own)

    def personal_params(self, down: Shared, up: Update | None, state: Kept, client: Client) -> Params:
        both = (up.params if up else down.params) | state.params
        return {name: both[name] for name in client.model.init()}


def _split(params: Params, model: Model) -> tuple[Params, Params]:
    """Split params into the shared ones and those of BatchNorm layers."""
    norms = model.batch_norms
    own = {name: v for name, v in params.items() if name.removeprefix(BUFFERS).rpartition(".")[0] in norms}
    return {name: v for name, v in params.items() if name not in own}, own
