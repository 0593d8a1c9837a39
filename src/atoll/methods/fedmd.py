"""FedMD. Li and Wang, NeurIPS workshop 2019, Algorithm 1. https://arxiv.org/abs/1910.03581

client:  1. if it is its first round: w_k <- SGD(w_k; D_k);   up: f_k(x_i), the logits of the round's public x_i
         2. digest: w_k <- argmin mean_i |f_k(x_i) - f~(x_i)|;   revisit: w_k <- SGD(w_k; D_k)
server:  1. f~(x_i) = mean_k f_k(x_i), over the clients of the round
         2. draw the public samples of the next round

The paper first trains on public samples with labels; here they have none, so that training begins on private ones.
Logits are compared by their mean absolute difference, as in the authors' code. They are taken in evaluation mode;
running statistics follow private batches only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation.policy import sum_for
from ..core.client import Client
from ..core.exchange import Exchange
from ..core.hyperparams import one_of, setting, within
from ..core.method import Method
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Payload, Role, about, payload
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
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
    rows: Tensor = about("numbers of the public samples of the round [m]")
    met: Tensor = about("which clients have taken part [N]")
    consensus: Tensor | None = about("f~, the mean logits of these samples [m, C], between two exchanges")


@payload
class Question:
    rows: Tensor = about("numbers of the public samples of the round [m]")
    first: bool = about("whether the client has to train before it answers")


@payload
class Scores:
    logits: Tensor = about("f_k, the client's logits of the samples [m, C]", role=Role.ACTIVATIONS)


@payload
class Lesson:
    rows: Tensor = about("numbers of the public samples of the round [m]")
    consensus: Tensor = about("f~, the mean logits of these samples [m, C]")


@dataclass(frozen=True)
class FedMD(Method[Server, State, Payload, Payload]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, on private samples"})
    digest: Optimiser = field(
        default=Adam(epochs=1, batch_size=128),
        metadata={"about": "training towards the consensus, on public samples", "source": "the authors' code"},
    )
    first_epochs: int = setting(
        1,
        "passes over private samples before the first answer",
        "chosen here: other methods have none; up to 25 by the authors",
    )
    rows: int = setting(5000, "public samples of a round, drawn anew for each; all if there are fewer", "authors' code")
    distance: str = setting("mae", f"what the digest makes small: {' or '.join(DISTANCES)}", "the authors' code")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.PUBLIC_DATA}),
        variants={"published": {"first_epochs": 25}},
        server_reads=Reads.SUMS,
    )

    def __post_init__(self) -> None:
        within(self, 0, "first_epochs")
        within(self, 1, "rows")
        one_of(self, "distance", DISTANCES)

    def init_server(self, task: Task, k: Key) -> Server:
        return Server(sample_public_rows(task, self.rows, k), torch.zeros(len(task.clients), dtype=torch.bool), None)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def exchanges(self) -> Sequence[Exchange]:
        return (Exchange(self.ask, self.answer, self.agree), Exchange(self.teach, self.learn, self.draw_rows))

    # -- 1. predictions and consensus ---------------------------------------------------------------------------------

    def ask(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Question:
        return Question(server.rows, not bool(server.met[task.index(to)]))

    def answer(self, down: Question, state: State, client: Client, r: Round, k: Key) -> tuple[Scores, State]:
        x, params = select_public_rows(client, down.rows), state.params
        if down.first:
            first = self.optim.for_epochs(self.first_epochs)
            params = first.fit(client.objective(), params, client, fold(k, -2))
        return Scores(client.model(params, x)), State(params)

    def agree(self, server: Server, replies: Iterable[Reply[Scores]], task: Task, r: Round, k: Key) -> Server:
        total, count, met = sum_for(replies), 0, server.met.clone()
        for sender, up in replies:
            total.add(up.logits)
            count += 1
            met[task.index(sender)] = True
        return Server(server.rows, met, (total.value() / count).float())

    # -- 2. digest and revisit ----------------------------------------------------------------------------------------

    def teach(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Lesson:
        assert server.consensus is not None
        return Lesson(server.rows, server.consensus)

    def learn(self, down: Lesson, state: State, client: Client, r: Round, k: Key) -> tuple[Nothing, State]:
        x = select_public_rows(client, down.rows)
        towards = freeze_statistics(imitation_loss(client.model, DISTANCES[self.distance]))
        batches = target_batches(x, down.consensus, self.digest, fold(k, -1))  # Private batches have keys from 0 on.
        params = self.digest.run(towards, state.params, batches)
        return Nothing(), State(self.optim.fit(client.objective(), params, client, k))

    def draw_rows(self, server: Server, replies: Iterable[Reply[Nothing]], task: Task, r: Round, k: Key) -> Server:
        return Server(sample_public_rows(task, self.rows, k), server.met, None)

    def personal_params(self, down: Payload, up: Payload | None, state: State, client: Client) -> Params:
        return state.params

    def why_closed(self) -> str | None:
        return "the consensus is made anew in every round from what its clients predict, and nobody keeps it"

    def reduces_to(self) -> str | None:
        if self.digest.count(1) == 0:
            return "With digest.epochs = 0 every client trains alone, as by Local, if first_epochs is 0 as well."
        return None
