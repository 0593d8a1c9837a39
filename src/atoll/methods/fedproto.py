"""FedProto. Tan et al., AAAI 2022, Algorithm 1. https://arxiv.org/abs/2105.00243

client:  w_k <- argmin CE(w; D_k) + lam / |B| sum_i dist(f(x_i), P[y_i]), from where it stopped
         up: P_k[c], the mean feature of each class c it has, and n_kc
server:  P[c] = mean of P_k[c] over the clients that sent it; classes nobody sent keep theirs

The paper's eq. (6) weighs by n_kc and divides by the number of clients as well, which shrinks prototypes: here it is
one or the other. The released code takes the mean and measures distances as mean squared errors (both the default),
averages features while the model still moves (here: after training) and forgets classes absent from a round (a switch).
The paper predicts by the nearest prototype; later comparisons, and the default here, use the client's own head.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import table_mean
from ..core.class_statistics import class_means
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId
from ._prototypes import DISTANCES, pull_to_means
from .local import State


@payload
class Prototypes:  # the server's state, and what it sends
    means: Tensor = about("P, the prototype of each class [C, d]", rows="seen")
    seen: Tensor = about("which classes have a prototype [C]")


@payload
class Means:
    means: Tensor = about("P_k, mean feature of each class [C, d]", role=Role.CLASS_TABLE, rows="n")
    n: Tensor = about("n_kc, samples of each class [C]", role=Role.COUNT, count=True)


@dataclass(frozen=True)
class FedProto(Method[Prototypes, State, Prototypes, Means]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    lam: float = setting(1.0, "strength of the pull of features to prototypes", "the authors' code")
    distance: str = setting("mse", f"what is pulled on: {', '.join(DISTANCES)}", "the authors' code")
    aggregation: str = setting("uniform", "mean over clients: uniform, or weighted by samples", "the authors' code")
    readout: str = setting(
        "head", "predict by the head, or by the nearest prototype", "evaluations by DC-PFL and pFedES"
    )
    proto_own_classes: bool = setting(True, "prototypes of other clients' classes do not compete", "the authors' code")
    forget_absent: bool = setting(
        False, "drop prototypes of classes that no client sent this round", "true in the public codes"
    )

    traits: ClassVar[Traits] = Traits(
        family="prototypes",
        needs=frozenset({Need.CLASSES, Need.SAME_WIDTH}),
        server_reads=Reads.SUMS,
        guards=("means",),
        bounded_statistics=True,
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam")
        one_of(self, "distance", DISTANCES)
        one_of(self, "aggregation", ("uniform", "weighted"))
        one_of(self, "readout", ("head", "prototype"))

    def init_server(self, task: Task, k: Key) -> Prototypes:
        c, d = task.num_classes, task.feature_dim
        return Prototypes(torch.zeros(c, d), torch.zeros(c, dtype=torch.bool))

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Prototypes, to: ClientId, task: Task, r: Round, k: Key) -> Prototypes:
        return server

    def client_update(self, down: Prototypes, state: State, client: Client, r: Round, k: Key) -> tuple[Means, State]:
        pull = pull_to_means(down.means, down.seen, self.lam, self.distance)
        params = self.optim.fit(client.objective(pull), state.params, client, k)
        n, means = class_means(client.features(params), client.members())
        return Means(means, n), State(params)

    def aggregate(
        self, server: Prototypes, replies: Iterable[Reply[Means]], task: Task, r: Round, k: Key
    ) -> Prototypes:
        equally = self.aggregation != "weighted"
        means, mass = table_mean(replies, "means", weight="n", around=server.means, equally=equally)
        now = mass > 0
        if self.forget_absent:
            return Prototypes(means, now)
        return Prototypes(torch.where(now[:, None], means, server.means), server.seen | now)

    def personal_params(self, down: Prototypes, up: Means | None, state: State, client: Client) -> Params:
        return state.params

    def personal_predictor(self, down: Prototypes, up: Means | None, state: State, client: Client) -> Predictor:
        if self.readout == "head":
            return client.predictor(state.params)
        held = client.members().sum(0) > 0
        able = down.seen & held if self.proto_own_classes else down.seen

        def nearest(x: Tensor) -> Tensor:
            """Return minus the squared distances to prototypes, or the head's logits while there is no prototype."""
            z = client.model.features(state.params, x)
            squared = (z[:, None] - down.means).square().sum(2).masked_fill(~able, torch.inf)
            return torch.where(able.any(), -squared, client.model.classify(state.params, z))

        return nearest

    def reduces_to(self) -> str | None:
        return "With lam = 0 every client trains alone, as by Local." if self.lam == 0 else None
