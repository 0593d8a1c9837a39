"""FedMD. Li and Wang, NeurIPS workshop 2019, Algorithm 1. https://arxiv.org/abs/1910.03581

client:  1. if it is its first round: w_k <- SGD(w_k; D_k);   up: f_k(x_i), the logits of the round's public x_i
         2. digest: w_k <- argmin mean_i |f_k(x_i) - f~(x_i)|;   revisit: w_k <- SGD(w_k; D_k)
server:  1. f~(x_i) = mean_k f_k(x_i), over the clients of the round
         2. draw the public rows of the next round

The paper first trains on public rows with labels; here they have none, so that training begins on private ones. Logits
are compared by their mean absolute difference, as in the authors' code. They are taken in evaluation mode; running
statistics follow private batches only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation.policy import sum_for
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import objective
from ..core.method import Method, Need
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..typing import ClientId
from ._distillation import (
    Divergence,
    freeze_statistics,
    imitation_loss,
    sample_public_rows,
    select_public_rows,
    target_batches,
)
from .local import State

DISTANCES: dict[str, Divergence] = {
    "mae": lambda target, logits: (logits - target).abs().mean(),
    "mse": lambda target, logits: (logits - target).square().mean(),
}


@payload
class Server:
    rows: Tensor = about("numbers of the public rows of the round [m]")
    met: Tensor = about("which clients have taken part [N]")
    consensus: Tensor | None = about("f~, the mean logits of these rows [m, C], between two exchanges")


@payload
class Lesson:
    rows: Tensor = about("numbers of the public rows of the round [m]")
    first: bool = about("whether the client has to train before it answers")
    consensus: Tensor | None = about("f~, the mean logits of these rows [m, C], in the second exchange")


@payload
class Scores:
    logits: Tensor | None = about(
        "f_k, the client's logits of the rows [m, C], in the first exchange", role=Role.ACTIVATIONS
    )


@dataclass(frozen=True)
class FedMD(Method[Server, State, Lesson, Scores]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, on private rows"})
    digest: Optimiser = field(
        default=Adam(epochs=1, batch_size=128),
        metadata={"about": "training towards the consensus, on public rows", "source": "the authors' code"},
    )
    first_epochs: int = setting(25, "passes over private rows before the first answer", "most in the authors' code")
    rows: int = setting(5000, "public rows of a round, drawn anew for each; all if there are fewer", "authors' code")
    distance: str = setting("mae", f"what the digest makes small: {' or '.join(DISTANCES)}", "the authors' code")

    phases: ClassVar[int] = 2
    family: ClassVar[str] = "logits/features"
    sums_uploads: ClassVar[bool] = True
    needs = frozenset({Need.PUBLIC_DATA})

    def __post_init__(self) -> None:
        within(self, 0, "first_epochs")
        within(self, 1, "rows")
        one_of(self, "distance", DISTANCES)

    def init_server(self, task: Task, k: Key) -> Server:
        return Server(sample_public_rows(task, self.rows, k), torch.zeros(len(task.clients), dtype=torch.bool), None)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round) -> Lesson:
        first = not bool(server.met[task.clients.index(to)])
        return Lesson(server.rows, first, server.consensus if r.phase else None)

    def local(self, down: Lesson, state: State, client: Client, k: Key) -> tuple[Scores, State]:
        x, own, params = select_public_rows(client, down.rows), objective(client.model), state.params
        if down.consensus is None:
            if down.first:
                params = replace(self.optim, epochs=self.first_epochs).fit(own, params, client, fold(k, -2))
            return Scores(client.model(params, x)), State(params)
        towards = freeze_statistics(imitation_loss(client.model, DISTANCES[self.distance]))
        params = self.digest.run(towards, params, target_batches(x, down.consensus, self.digest, fold(k, -1)))
        return Scores(None), State(
            self.optim.fit(own, params, client, k)
        )  # Private batches use the keys of epochs from 0 on.

    def aggregate(self, server: Server, replies: Iterable[Reply[Scores]], task: Task, r: Round, k: Key) -> Server:
        if r.phase:
            return Server(sample_public_rows(task, self.rows, k), server.met, None)
        total, count, met = sum_for(replies), 0, server.met.clone()
        for sender, up in replies:
            assert up.logits is not None
            total.add(up.logits)
            count += 1
            met[task.clients.index(sender)] = True
        return Server(server.rows, met, (total.value() / count).float())

    def own(self, down: Lesson, up: Scores | None, state: State, client: Client) -> Params:
        return state.params

    def why_closed(self) -> str | None:
        return "the consensus is made anew in every round from what its clients predict, and nobody keeps it"

    def reduces_to(self) -> str | None:
        if self.digest.epochs == 0:
            return "With digest.epochs = 0 every client trains alone, as by Local, if first_epochs is 0 as well."
        return None
