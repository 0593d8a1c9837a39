"""FedPAC. Xu et al., ICLR 2023, Algorithm 1. https://arxiv.org/abs/2306.11867

client:  1. h_k[c] = p_kc mean f(x | c),  v_k = (mean ||f(x)||^2 - ||h_k||^2) / n_k, with the body it received
         2. phi_k <- SGD(phi_k; body fixed);   3. body <- SGD(CE + lam/n sum_i ||f(x_i) - mu[y_i]||^2 / d; phi_k fixed)
         up: body, phi_k, h_k, v_k, and the mean feature and samples of each class after training
server:  body = sum_k n_k body_k / sum_k n_k;   mu[c] = sum_k n_kc mu_k[c] / sum_k n_kc
         phi_k = sum_j a_j phi_j,  a = argmin sum_j a_j^2 v_j + ||h_k - sum_j a_j h_j||^2,  a >= 0, sum_j a_j = 1

p_kc is the share of class c in the client's samples. The paper combines the heads of the clients of a round; here the
last head of every client that has taken part counts, so that a client may miss rounds. A fixed body is in evaluation
mode. A class that no client sent in a round keeps its mu.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.class_statistics import Pool, class_means
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import part
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.per_client import PerClient
from ..core.prng import Key, fold
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._partial_model import fit_body, fit_head, join_parts
from ._prototypes import pull_to_means
from ._simplex import minimise_on_simplex


@payload
class Global:
    params: Params = about("the body that all share")
    means: Tensor = about("mu, the mean feature of each class [C, d]", rows="seen")
    seen: Tensor = about("which classes have a mean [C]")


@payload
class Down(Global):
    head: Params = about("phi_k, the combination of heads for this client")


@payload
class Update:
    params: Params = about("the body after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    head: Params = about("phi_k, the head after local training", role=Role.MODEL)
    shares: Tensor = about("h_k, class means times shares [C, d]", role=Role.CLASS_TABLE, rows="counts")
    variance: Tensor = about("v_k, the variance of h_k", role=Role.OTHER)
    means: Tensor = about("mu_k, mean feature of each class [C, d]", role=Role.CLASS_TABLE, rows="counts")
    counts: Tensor = about("n_kc, samples of each class [C]", role=Role.COUNT, count=True)


@payload
class Kept:
    head: Params = about("phi_j, the client's last head")
    shares: Tensor = about("h_j [C, d]")
    variance: Tensor = about("v_j")


@dataclass(frozen=True)
class FedPAC(Method[Global, Nothing, Down, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "training of the body"})
    head_optim: Optimiser = field(
        default=SGD(lr=0.1, epochs=1),
        metadata={"about": "training of the head, before it", "source": "one epoch: paper; rate chosen here"},
    )
    lam: float = setting(1.0, "strength of the pull of features to class means", "paper")

    traits: ClassVar[Traits] = Traits(
        family="split model",
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}),
        why_uploads="it combines the heads of clients by the statistics of each",
        guards=("params",),
        as_sent="heads, the statistics by which they are combined, and class means",
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam")

    def init_server(self, task: Task, k: Key) -> Global:
        c, d = task.num_classes, task.feature_dim
        return Global(part(task.model.init(), "body"), torch.zeros(c, d), torch.zeros(c, dtype=torch.bool))

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> Kept:
        return Kept({}, torch.zeros(task.num_classes, task.feature_dim), torch.zeros(()))

    def broadcast_from_all(
        self, server: Global, states: PerClient[Kept], to: ClientId, task: Task, r: Round, k: Key
    ) -> Down:
        head = combine(states, to) if to in states else part(task.models[to].init(), "head")
        return Down(server.params, server.means, server.seen, head)

    def client_update(self, down: Down, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        shares, variance = statistics(client.features(down.params), client.members())
        # The body uses the keys of epochs from 0 on, so the head has a key of its own.
        head = fit_head(self.head_optim, down.params, down.head, client, fold(k, -1))
        pull = pull_to_means(down.means, down.seen, self.lam, "mse")
        body = fit_body(self.optim, down.params, head, client, k, pull)
        counts, means = class_means(client.features(body), client.members())
        return Update(body, client.n, head, shares, variance, means, counts), state

    def serve_client(
        self, server: Global, per_client: Kept, reply: Reply[Update], task: Task, r: Round, k: Key
    ) -> tuple[Update, Kept]:
        up = reply.upload
        return up, Kept(up.head, up.shares, up.variance)

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        c, d = server.means.shape
        pool = Pool(c, d, covariances=False)

        def uploads() -> Iterable[Update]:
            for reply in replies:
                pool.add(reply.upload.counts, reply.upload.means, None)
                yield reply.upload

        params = mean(with_policy_of(replies, uploads()), "params", weight="n")
        now = pool.n > 0
        return Global(params, torch.where(now[:, None], pool.mu.float(), server.means), server.seen | now)

    def personal_params(self, down: Down, up: Update | None, state: Nothing, client: Client) -> Params:
        return join_parts(up.params, up.head) if up else join_parts(down.params, down.head)

    def why_closed(self) -> str | None:
        return "the server combines heads for clients by their statistics, and has none of a new client"


def statistics(z: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Return h [C, d] and v of features [N, d], given one-hot labels [N, C] that are 0 for padding."""
    n, mu = class_means(z, member)
    rows = n.sum().clamp(min=1)
    h = n[:, None] / rows * mu
    squares = (member.sum(1) * z.square().sum(1)).sum() / rows
    return h, (squares - h.square().sum()) / rows


def combine(states: PerClient[Kept], to: ClientId) -> Params:
    """Return the combination of the clients' heads for client ``to``."""
    kept = [states[i] for i in states]
    h = torch.stack([other.shares.flatten() for other in kept]).double()
    apart = states[to].shares.flatten().double() - h
    a = minimise_on_simplex(apart @ apart.T + torch.stack([other.variance for other in kept]).double().diag())
    heads = {name: torch.stack([other.head[name] for other in kept]) for name in kept[0].head}
    return {name: torch.tensordot(a, v.double(), 1).to(v.dtype) for name, v in heads.items()}
