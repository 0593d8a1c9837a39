"""KT-pFL. Zhang et al., NeurIPS 2021, Algorithm 1. https://arxiv.org/abs/2111.02862

client:  1. w_n <- SGD(w_n; D_n);   up: s_n = softmax(f_n(x) / T) of the round's public x
         2. w_n <- argmin KL(sum_m c_nm s_m || softmax(f_n(x) / T)), mean over the public x
server:  1. c_n <- P[c_n - eta grad(|s_n - sum_m c_nm s_m|^2 + rho |c_n - 1/N|^2)],   P: onto the simplex
         2. draw the public samples of the next round

The distance that c makes small is a mean over samples and classes, as in the released code. That code divides KL by the
number of classes too, scales every step of c, and replaces P by a softmax of 5 c, which draws rows back to 1/N each
round (projection). At its temperature of 10 soft predictions differ so little that c hardly leaves 1/N. Of absent
clients c_nm stays as it is: the others share what is left of the row. s_n is taken in evaluation mode; running
statistics follow private batches only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..core.client import Client
from ..core.exchange import Exchange
from ..core.hyperparams import one_of, setting, within
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Payload, Role, about, payload
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._distillation import (
    freeze_statistics,
    imitation_loss,
    kl_divergence,
    sample_public_rows,
    select_public_rows,
    target_batches,
)
from .local import State


@payload
class Server:
    rows: Tensor = about("numbers of the public samples of the round [m]")
    c: Tensor = about("c, how much each client learns from each [N, N]")
    targets: Params = about("what each client of the round is to predict [m, C], between two exchanges")


@payload
class Question:
    rows: Tensor = about("numbers of the public samples of the round [m]")


@payload
class Predictions:
    probs: Tensor = about(
        "s_n, the client's soft predictions of the samples [m, C]", role=Role.ACTIVATIONS, probabilities=True
    )


@payload
class Target:
    rows: Tensor = about("numbers of the public samples of the round [m]")
    probs: Tensor = about("sum_m c_nm s_m, what the client is to predict for them [m, C]")


@dataclass(frozen=True)
class KTpFL(Method[Server, State, Payload, Payload]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, on private samples"})
    distil: Optimiser = field(
        default=SGD(lr=0.02, steps=40, batch_size=256, weight_decay=0.0, clip=0.0, momentum=0.0),
        metadata={
            "about": "training towards the targets, on public samples",
            "source": "public code; 40 steps are its two epochs of 5,000 samples",
        },
    )
    temperature: float = setting(1.0, "T, what logits are divided by", "chosen here; 10 in the public code")
    eta: float = setting(0.1, "learning rate of c", "chosen here; scaled in every step in the public code")
    rho: float = setting(0.7, "strength of the pull of c to equal shares", "public code, which tries 0.1 to 3")
    projection: str = setting("simplex", "how rows of c come to sum to 1: simplex or softmax", "softmax in that code")
    rows: int = setting(5000, "public samples of a round, drawn anew for each; all if there are fewer", "public code")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.CLASSES, Need.PUBLIC_DATA}),
        variants={"published": {"temperature": 10.0}},
        why_uploads="the server weighs the predictions of each client for each other one",
    )

    def __post_init__(self) -> None:
        within(self, 0.001, "temperature")
        within(self, 0, "eta", "rho")
        within(self, 1, "rows")
        one_of(self, "projection", ("simplex", "softmax"))

    def exchanges(self) -> Sequence[Exchange]:
        return (Exchange(self.ask, self.answer, self.weigh), Exchange(self.teach, self.learn, self.draw_rows))

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def answer(self, down: Question, state: State, client: Client, r: Round, k: Key) -> tuple[Predictions, State]:
        params = self.optim.fit(client.objective(), state.params, client, k)
        logits = client.model(params, select_public_rows(client, down.rows))
        return Predictions((logits / self.temperature).softmax(1)), State(params)

    def learn(self, down: Target, state: State, client: Client, r: Round, k: Key) -> tuple[Nothing, State]:
        def apart(target: Tensor, logits: Tensor) -> Tensor:
            return kl_divergence(target, logits / self.temperature)

        x = select_public_rows(client, down.rows)
        batches = target_batches(x, down.probs, self.distil, fold(k, -1))  # Private rows use the keys from 0 on.
        loss = freeze_statistics(imitation_loss(client.model, apart))
        return Nothing(), State(self.distil.run(loss, state.params, batches))

    def personal_params(self, down: Payload, up: Payload | None, state: State, client: Client) -> Params:
        return state.params

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Server:
        n = len(task.clients)
        return Server(sample_public_rows(task, self.rows, k), torch.full((n, n), 1 / n), {})

    def ask(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Question:
        return Question(server.rows)

    def teach(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Target:
        return Target(server.rows, server.targets[to])

    def draw_rows(self, server: Server, replies: Iterable[Reply[Nothing]], task: Task, r: Round, k: Key) -> Server:
        return Server(sample_public_rows(task, self.rows, k), server.c, {})

    def weigh(self, server: Server, replies: Iterable[Reply[Predictions]], task: Task, r: Round, k: Key) -> Server:
        s = {sender: up.probs for sender, up in replies}
        who = torch.tensor([task.index(i) for i in s])
        present = who[:, None], who
        left = server.c[present].double()
        share = left.sum(1, keepdim=True)
        known = torch.stack([v.flatten() for v in s.values()]).double()  # [P, m C]
        learned = self.next_weights(torch.where(share > 0, left / share, 1 / len(who)), known)
        targets = (learned @ known).float().reshape(len(who), *next(iter(s.values())).shape)
        c = server.c.index_put(present, (share * learned).float())
        return Server(server.rows, c, dict(zip(s, targets, strict=True)))

    def next_weights(self, c: Tensor, s: Tensor) -> Tensor:
        """Return the next rows of c [P, P], given the soft predictions [P, m C] of the same clients."""
        apart = (c - torch.eye(len(c))) @ (s @ s.T) * 2 / s.shape[1]
        c = c - self.eta * (apart + 2 * self.rho * (c - 1 / len(c)))
        return (5 * c).softmax(1) if self.projection == "softmax" else simplex(c)

    def why_closed(self) -> str | None:
        return (
            "the server learns how much each client of the run takes from each other one, and teaches by what these "
            "predict in the round: of a new client it has learnt nothing, and predictions are not kept"
        )

    def reduces_to(self) -> str | None:
        if self.distil.count(1) == 0:
            return "With distil.steps = none and distil.epochs = 0 every client trains alone, as by Local."
        if self.eta == 0 and self.projection == "simplex":
            return "With eta = 0 every client is taught the plain mean of all soft predictions."
        return None


def simplex(v: Tensor) -> Tensor:
    """Project each row onto the probability simplex: subtract a threshold and cut at 0."""
    largest = v.sort(1, descending=True).values
    count = torch.arange(1, v.shape[1] + 1)
    over = (largest.cumsum(1) - 1) / count  # The threshold for each number of entries that stay above it.
    support = (largest > over).sum(1, keepdim=True)
    return (v - over.gather(1, support - 1)).clamp(min=0)
