"""FedTGP. Zhang et al., AAAI 2024. https://arxiv.org/abs/2401.03230

client:  w_k <- argmin CE(w; D_k) + lam d / lam_width / |B| sum_i mse(f(x_i), P[y_i]), from where it stopped
         up: P_k[c], the mean feature of each class c it has
server:  P[c] = MLP(e_c), a linear layer, ReLU and another one on an embedding e_c of each class, all trained on
         mean of -log [ e^-(d_c + delta) / (e^-(d_c + delta) + sum_{c' != c} e^-d_c') ],  d_c' = ||P_k[c] - P[c']||
         Q_c = mean of P_k[c];  r_c = distance of Q_c from the nearest other;  delta = min(max_c r_c, tau)

The margin delta is that of the released code; formulas often take the largest distance of all pairs (max_pair). With a
single class in a round it is 0. Classes that nobody ever sent repel, but are not sent: their prototypes are noise. The
authors' lam of 10 is for d = 512; a mean squared error divides by d, so that it would pull harder on narrower features.
As with FedProto, features are averaged after training, and the client's head predicts unless readout says otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.batch import Batch
from ..core.class_statistics import class_means
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Loss
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, about, payload
from ..core.prng import Key, fold, normal
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._generator import init_linear
from .fedgh import Means
from .fedproto import FedProto, Prototypes
from .local import State


@payload
class Server:
    params: Params = about("e and the MLP")
    means: Tensor = about("P, the prototype of each class [C, d]", rows="seen")
    seen: Tensor = about("which classes anybody ever sent [C]")


@dataclass(frozen=True)
class FedTGP(Method[Server, State, Prototypes, Means]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    server: Optimiser = field(
        default=SGD(lr=0.01, epochs=100, batch_size=10, weight_decay=0.0, clip=0.0, momentum=0.0),
        metadata={"about": "training of the prototypes", "source": "the authors' command"},
    )
    lam: float = setting(
        10.0,
        "strength of the pull of features to prototypes, for features of lam_width entries",
        "the authors' command",
    )
    lam_width: int = setting(512, "lam is multiplied by the width d over this; 0: lam at any width", "authors' models")
    tau: float = setting(100.0, "largest margin", "the authors' command")
    margin: str = setting("nearest", "distance behind the margin: nearest, or max_pair", "the authors' code")
    readout: str = setting(
        "head", "predict by the head, or by the nearest prototype", "as for FedProto; nearest in HtFLlib"
    )
    proto_own_classes: bool = setting(True, "prototypes of other clients' classes do not compete", "as for FedProto")

    traits: ClassVar[Traits] = Traits(
        family="prototypes",
        needs=frozenset({Need.CLASSES, Need.SAME_WIDTH}),
        variants={"published": {"lam_width": 0}},
        why_uploads="the server trains its prototypes on the means of each client",
        bounded_statistics=True,
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam", "lam_width", "tau")
        one_of(self, "margin", ("nearest", "max_pair"))
        one_of(self, "readout", ("head", "prototype"))

    def _client(self, width: int) -> FedProto:
        """Return the FedProto method that clients with features of this width run: FedTGP differs on the server."""
        lam = self.lam * width / self.lam_width if self.lam_width else self.lam
        return FedProto(self.optim, lam, readout=self.readout, proto_own_classes=self.proto_own_classes)

    def init_server(self, task: Task, k: Key) -> Server:
        c, d = task.num_classes, task.feature_dim
        params = (
            {"e": normal(fold(k, 0), c, d)}
            | init_linear("fc1", d, d, fold(k, 1))
            | init_linear("fc2", d, d, fold(k, 2))
        )
        return Server(params, torch.zeros(c, d), torch.zeros(c, dtype=torch.bool))

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Prototypes:
        return Prototypes(server.means, server.seen)

    def client_update(self, down: Prototypes, state: State, client: Client, r: Round, k: Key) -> tuple[Means, State]:
        up, state = self._client(client.model.feature_dim).client_update(down, state, client, r, k)
        return Means(up.means, up.n > 0), state

    def aggregate(self, server: Server, replies: Iterable[Reply[Means]], task: Task, r: Round, k: Key) -> Server:
        sent = [
            (reply.upload.means[held], held.nonzero().flatten())
            for reply in replies
            if (held := reply.upload.held).any()
        ]
        if not sent:
            return server
        x, y = (torch.cat(rows) for rows in zip(*sent, strict=True))
        loss = contrast(self.gap(x, y, task.num_classes))
        params = self.server.run(loss, server.params, self.server.batches(x, y, k))
        seen = server.seen.index_fill(0, y, True)
        return Server(params, prototypes(params) * seen[:, None], seen)

    def gap(self, x: Tensor, y: Tensor, classes: int) -> Tensor:
        """Return the margin delta, from the means P_k[c] and their classes."""
        n, q = class_means(x, F.one_hot(y, classes))
        apart = distances(q[n > 0], q[n > 0])
        if len(apart) < 2:
            return torch.zeros(())
        if self.margin == "nearest":
            apart = apart.fill_diagonal_(torch.inf).amin(1)
        return apart.max().clamp(max=self.tau)

    def personal_params(self, down: Prototypes, up: Means | None, state: State, client: Client) -> Params:
        return state.params

    def personal_predictor(self, down: Prototypes, up: Means | None, state: State, client: Client) -> Predictor:
        return self._client(client.model.feature_dim).personal_predictor(down, None, state, client)

    def reduces_to(self) -> str | None:
        return "With lam = 0 every client trains alone, as by Local." if self.lam == 0 else None


def prototypes(params: Params) -> Tensor:
    """Return P [C, d]."""
    hidden = F.linear(params["e"], params["fc1.weight"], params["fc1.bias"]).relu()
    return F.linear(hidden, params["fc2.weight"], params["fc2.bias"])


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the distances between all rows of ``a`` and ``b``; a lower bound keeps the gradient finite at 0."""
    return (a[:, None] - b).square().sum(2).clamp(min=1e-12).sqrt()


def contrast(delta: Tensor) -> Loss:
    """Return the cross-entropy of the logits -(d + delta at the row's own class)."""

    def loss(params: Params, b: Batch) -> Tensor:
        d = distances(b.x, prototypes(params))
        return F.cross_entropy(-(d + delta * F.one_hot(b.y, d.shape[1])), b.y)

    return loss
