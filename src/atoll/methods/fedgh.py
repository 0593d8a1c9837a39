"""FedGH. Yi et al., ACM Multimedia 2023, Algorithm 1. https://arxiv.org/abs/2303.13137

client:  (theta_k, phi_k) = SGD(theta_k, phi_t; D_k);   up: mu_kc, the mean feature of each class c it has
server:  phi <- phi - eta grad CE(g_phi(mu_kc), c), for one client and class after the other

Means are exact and taken after training, without augmentation (the released code averages means of batches, with it).
The released code steps the wrong optimiser, so that its global head never moves: freeze_global_head imitates that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.class_statistics import class_means
from ..core.client import Client
from ..core.hyperparams import one_of, setting
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import part
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._prototypes import PLAIN, class_mean_batches, head_loss
from .local import State

MODES = ("per_sample", "per_client_mean", "shuffled_batches")


@payload
class Head:  # the server's state, and what it sends
    head: Params = about("phi_t, the global head")


@payload
class Means:
    means: Tensor = about("mu_k, mean feature of each class [C, d]", role=Role.CLASS_TABLE, rows="held")
    held: Tensor = about("which classes the client has [C]", role=Role.CLASS_TABLE)


@dataclass(frozen=True)
class FedGH(Method[Head, State, Head, Means]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    server: Optimiser = field(
        default=PLAIN,
        metadata={
            "about": "training of the global head; epochs are passes over the means",
            "source": "rate and one pass: public code; plain steps: chosen here",
        },
    )
    server_mode: str = setting("per_sample", f"samples of a server step: {', '.join(MODES)}", "FedGH paper")
    freeze_global_head: bool = setting(False, "leave the global head as it was born", "true imitates the released code")

    traits: ClassVar[Traits] = Traits(
        family="server-trained",
        needs=frozenset({Need.CLASSES, Need.SAME_WIDTH, Need.SEPARATE_HEAD}),
        why_uploads="the server trains its head on the means of each client",
        bounded_statistics=True,
    )

    def __post_init__(self) -> None:
        one_of(self, "server_mode", MODES)

    def init_server(self, task: Task, k: Key) -> Head:
        return Head(part(task.model.init(), "head"))

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Head, to: ClientId, task: Task, r: Round, k: Key) -> Head:
        return server

    def client_update(self, down: Head, state: State, client: Client, r: Round, k: Key) -> tuple[Means, State]:
        params = self.optim.fit(client.objective(), state.params | down.head, client, k)
        n, means = class_means(client.features(params), client.members())
        return Means(means, n > 0), State(params)

    def aggregate(self, server: Head, replies: Iterable[Reply[Means]], task: Task, r: Round, k: Key) -> Head:
        batches = class_mean_batches((reply.upload.means, reply.upload.held) for reply in replies)
        if self.freeze_global_head or not batches:
            return server
        return Head(self.server.run(head_loss(task.model), server.head, self._order(batches, k)))

    def _order(self, batches: list[Batch], k: Key) -> Iterable[Batch]:
        """Arrange the batches of class means, one for each client, as ``server_mode`` requires."""
        if self.server_mode == "shuffled_batches":
            return self.server.batches(torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches]), k)
        each = batches if self.server_mode == "per_client_mean" else [row for b in batches for row in _rows(b)]
        return islice(cycle(each), self.server.count(len(each)))

    def personal_params(self, down: Head, up: Means | None, state: State, client: Client) -> Params:
        return state.params if up else state.params | down.head

    def reduces_to(self) -> str | None:
        if self.freeze_global_head:
            return "With freeze_global_head clients learn nothing from each other: the head they receive never changes."
        return None


def _rows(b: Batch) -> Iterator[Batch]:
    for i in range(len(b.y)):
        yield b._replace(x=b.x[i : i + 1], y=b.y[i : i + 1], w=b.w[i : i + 1])
