"""FD. Jeong et al., arXiv 2018 (federated distillation). https://arxiv.org/abs/1811.11479

client:  w_k <- argmin CE(w; D_k) + gamma / |B| sum_i H(T_k[y_i], p(x_i)), from where it stopped
         p: predictions (softmax);  H(q, p) = -sum_j q_j log p_j
         up: F_k[c], the mean of its predictions for samples of class c, over all steps of the round
server:  T_k[c] = mean of F_j[c] over the other clients j != k that sent it

A class that nobody else sent has no teacher, and its samples only their labels. In the paper every client has all
classes; the client's own share is left out as there, of those that sent the class. Predictions are averaged as
probabilities: public codes average logits and take them for a distribution, which leaves their loss without a lower
bound. A client that never took part gets the teachers of all classes, because nobody knows yet which ones it has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation.policy import sum_for
from ..core.batch import Batch
from ..core.class_statistics import class_means
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Loss, cross_entropy, wmean
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import BUFFERS
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from .local import State

TALLY = BUFFERS + "tally"  # During training the sums of predictions are stored among the params, like statistics.


@payload
class Server:
    total: Tensor = about("sum of F_k[c] over the clients that sent class c [C, C]", rows="n")
    n: Tensor = about("how many did [C]")
    t: Tensor = about("the round in which they did [C]")


@payload
class PerClient:
    means: Tensor = about("F_k, as the client last sent it [C, C]", rows="held")
    held: Tensor = about("which classes it has [C]")
    t: int = about("the round in which it did; -1: not yet")


@payload
class Teachers:
    means: Tensor = about("T_k, mean prediction of the others for each class [C, C]", rows="known")
    known: Tensor = about("which classes have a teacher [C]")


@payload
class Means:
    means: Tensor = about(
        "F_k, mean prediction for each class [C, C]", role=Role.CLASS_TABLE, rows="held", probabilities=True
    )
    held: Tensor = about("which classes the client has [C]", role=Role.CLASS_TABLE)


@dataclass(frozen=True)
class FD(Method[Server, State, Teachers, Means]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    gamma: float = setting(1.0, "strength of the pull of predictions to the teachers", "public code of HtFLlib")
    post_pass: bool = setting(False, "take the means after training, in one pass", "paper")
    include_self: bool = setting(False, "count a client's own share among its teachers", "paper; true in HtFLlib")
    keep_last: bool = setting(False, "keep teachers of classes that nobody sent in the last round", "chosen here")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.CLASSES}),
        varying_bytes=True,
        why_uploads="the server keeps the means of each client, to leave them out of its teachers",
    )

    def __post_init__(self) -> None:
        within(self, 0, "gamma")

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Teachers, state: State, client: Client, r: Round, k: Key) -> tuple[Means, State]:
        start = state.params | {TALLY: torch.zeros(client.num_classes, client.num_classes)}
        params = self.optim.fit(self.loss(down.means, client), start, client, k)
        tally = params.pop(TALLY)
        if self.post_pass:
            n, means = class_means(client.model(params, client.x).softmax(1), client.members())
        else:
            n = tally.sum(1)  # Every prediction sums to 1.
            means = tally / torch.where(n > 0, n, 1)[:, None]
        return Means(means, n > 0), State(params)

    def loss(self, teachers: Tensor, client: Client) -> Loss:
        """Return the loss CE + gamma H; a class without teacher has a row of zeros, so H is 0 for it."""

        def loss(w: Params, b: Batch) -> Tensor:
            log_p = (logits := client.model.step(w, b).logits).log_softmax(1)
            own = (b.y == torch.arange(client.num_classes)[:, None]) * b.w
            b.stats[TALLY] = w[TALLY] + own @ log_p.exp()
            return cross_entropy(logits, b) - self.gamma * wmean((teachers[b.y] * log_p).sum(1), b.w)

        return loss

    def personal_params(self, down: Teachers, up: Means | None, state: State, client: Client) -> Params:
        return state.params

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Server:
        c = task.num_classes
        return Server(torch.zeros(c, c, dtype=torch.double), torch.zeros(c), torch.zeros(c, dtype=torch.long))

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> PerClient:
        c = task.num_classes
        return PerClient(torch.zeros(c, c), torch.zeros(c, dtype=torch.bool), -1)

    def broadcast_per_client(
        self, server: Server, per_client: PerClient, to: ClientId, task: Task, r: Round, k: Key
    ) -> Teachers:
        mine = per_client.held & (server.t == per_client.t)
        if self.include_self:
            mine = torch.zeros_like(mine)
        others = server.n - mine.float()
        known = (others > 0) & (per_client.held if per_client.t >= 0 else True)
        means = (server.total - mine[:, None] * per_client.means) / others.clamp(min=1)[:, None]
        return Teachers(torch.where(known[:, None], means, 0).float(), known)

    def serve_client(
        self, server: Server, per_client: PerClient, reply: Reply[Means], task: Task, r: Round, k: Key
    ) -> tuple[Means, PerClient]:
        return reply.upload, PerClient(reply.upload.means, reply.upload.held, r.t)

    def aggregate(self, server: Server, replies: Iterable[Reply[Means]], task: Task, r: Round, k: Key) -> Server:
        sums, n = sum_for(replies), torch.zeros_like(server.n)
        for reply in replies:
            sums.add(reply.upload.means)
            n = n + reply.upload.held
        total = sums.value().to(server.total.dtype)
        now = (n > 0) | (not self.keep_last)
        return Server(
            torch.where(now[:, None], total, server.total),
            torch.where(now, n, server.n),
            torch.where(now, r.t, server.t),
        )

    def reduces_to(self) -> str | None:
        return "With gamma = 0 every client trains alone, as by Local." if self.gamma == 0 else None
