"""DC-PFL. Tang et al., IJCAI 2024, Algorithm 1. https://doi.org/10.24963/ijcai.2024/551

client:  (theta_k, phi_k) = argmin CE + lam / |B| sum_i ||f(x_i) - M[y_i]||, from (theta_k, phi_t)     eqs. (2)-(5)
         up: n_kc, mu_kc, Sigma_kc of the features of each class c it has                              eqs. (6)-(7)
server:  phi <- phi - eta grad mean_c CE(g_phi(mu_kc), c), for one client after the other              eqs. (8)-(9)
         M[c] = mu_c, Sigma_c pooled over clients;  phi_{t+1} = SGD(phi; z ~ N(mu_c, Sigma_c))       eqs. (10)-(12)

Eq. (11) weighs Sigma_kc by n_kc, where the identity above it gives n_kc - 1: the default is exact (cov_formula).
Algorithm 1 moves phi inside its loop over clients; here every client of a round receives the same phi.
Eqs. (7) and (10) divide by zero for one sample and for no sample: such a covariance is 0, such a class keeps its last
mean. Counts are not in the paper's list of what is sent, but eqs. (10)-(11) need them. A class without a mean is not
pulled.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..core.class_statistics import Pool, class_means, covariance_factors, covariances, draw
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import part
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._prototypes import DISTANCES, PLAIN, class_mean_batches, head_loss, pull_to_means
from .local import State

LOW_RANK = re.compile(r"lowrank:([1-9]\d*)")  # a value of cov_source, with the number of columns


@payload
class Server:
    head: Params = about("phi_t, the global head")
    means: Tensor = about("M, the last pooled mean of each class [C, d]", rows="seen")
    seen: Tensor = about("which classes have a mean [C]")
    n: Tensor | None = about("n_c behind it [C], if statistics are cached", rows="seen")
    sigma: Tensor | None = about("Sigma_c beside it [C, d, d], if statistics are cached", rows="seen", symmetric=True)


@payload
class Knowledge:
    head: Params = about("phi_t, the global head")
    means: Tensor | None = about("M, the mean of each class [C, d], unless lam is 0", rows="seen")
    seen: Tensor = about("which classes have a mean [C]")


@payload
class Gaussians:
    n: Tensor = about("n_kc, samples of each class [C]", role=Role.COUNT, count=True)
    mu: Tensor = about("mu_kc, mean feature of each class [C, d]", role=Role.CLASS_TABLE, rows="n")
    sigma: Tensor | None = about(
        "Sigma_kc [C, d, d], if covariances are sent", role=Role.CLASS_TABLE, rows="n", symmetric=True, psd=True
    )
    factors: Tensor | None = about(
        "F_kc [C, d, R] in place of Sigma_kc, if cov_source is lowrank:R", role=Role.CLASS_TABLE, rows="n", factor=True
    )


@dataclass(frozen=True)
class DCPFL(Method[Server, State, Knowledge, Gaussians]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    lam: float = setting(0.1, "strength of the pull of features to the pooled means", "not in the paper; chosen here")
    aux: str = setting("l2", f"distance that is pulled on: {', '.join(DISTANCES)}", "paper, eq. (3)")
    virtual: int = setting(1000, "features drawn each round; 0: no calibration, no covariance is sent", "paper")
    calibrate: Optimiser = field(
        default=PLAIN,
        metadata={
            "about": "training of the global head",
            "source": "rate: paper; one epoch, batches of 64: chosen here",
        },
    )
    head_passes: int = setting(1, "passes over the clients' means before calibration", "chosen here")
    cov_formula: str = setting("exact", "pooling of covariances: exact, or paper for its eq. (11)", "chosen here")
    stats_scope: str = setting("round", "draw classes of this round, or cached ones as well", "paper")
    virtual_relu: bool = setting(False, "cut drawn features at 0, as real ones are", "paper")
    cov_source: str = setting(
        "client",
        "covariances: sent by clients (client), as the R columns that explain most (lowrank:R), or estimated by "
        "the server from means alone (means)",
        "paper; lowrank: chosen here; means: FedCOF",
    )
    min_count: int = setting(1, "classes with fewer samples are not sent", "off; 3 hides single features")

    traits: ClassVar[Traits] = Traits(
        family="server-trained",
        needs=frozenset({Need.CLASSES, Need.SAME_WIDTH, Need.SEPARATE_HEAD}),
        variants={"no-al": {"lam": 0.0}, "no-gc": {"virtual": 0}},
        why_uploads="the server takes a step of the head for each client, on that client's own means",
        bounded_statistics=True,
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam", "virtual", "head_passes")
        within(self, 1, "min_count")
        one_of(self, "aux", DISTANCES)
        one_of(self, "cov_formula", ("exact", "paper"))
        if not LOW_RANK.fullmatch(self.cov_source):
            one_of(self, "cov_source", ("client", "lowrank:R (R: 1, 2, ...)", "means"))
        one_of(self, "stats_scope", ("round", "cached"))

    def init_server(self, task: Task, k: Key) -> Server:
        c, d = task.num_classes, task.feature_dim
        cached = self.stats_scope == "cached" and self.virtual > 0
        n, sigma = (torch.zeros(c), torch.zeros(c, d, d)) if cached else (None, None)
        return Server(part(task.model.init(), "head"), torch.zeros(c, d), torch.zeros(c, dtype=torch.bool), n, sigma)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Knowledge:
        if self.lam == 0:
            return Knowledge(server.head, None, torch.zeros_like(server.seen))
        return Knowledge(server.head, server.means, server.seen)

    def client_update(self, down: Knowledge, state: State, client: Client, r: Round, k: Key) -> tuple[Gaussians, State]:
        pulls = [] if down.means is None else [pull_to_means(down.means, down.seen, self.lam, self.aux)]
        params = self.optim.fit(client.objective(*pulls), state.params | down.head, client, k)
        z, member = client.features(params), client.members()
        member = member * (member.sum(0) >= self.min_count)
        n, mu = class_means(z, member)
        return Gaussians(n, mu, *self._spreads(z, member, n, mu)), State(params)

    def _spreads(self, z: Tensor, member: Tensor, n: Tensor, mu: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return covariances or factors of them, whichever is sent."""
        low_rank = LOW_RANK.fullmatch(self.cov_source)
        if self.virtual == 0 or self.cov_source == "means":
            return None, None
        if low_rank:
            return None, covariance_factors(z, member, n, mu, int(low_rank[1]))
        return covariances(z, member, n, mu), None

    def aggregate(self, server: Server, replies: Iterable[Reply[Gaussians]], task: Task, r: Round, k: Key) -> Server:
        formulas = self.cov_formula == "exact", self.cov_source == "means"
        pool = Pool(task.num_classes, task.feature_dim, self.virtual > 0, *formulas)
        received: list[tuple[Tensor, Tensor]] = []
        for _, up in replies:
            pool.add(up.n, up.mu, up.sigma, up.factors)
            received.append((up.mu, up.n > 0))
        loss, now = head_loss(task.model), pool.n > 0
        head = self.calibrate.run(loss, server.head, class_mean_batches(received) * self.head_passes)
        means = torch.where(now[:, None], pool.mu.float(), server.means)
        n, sigma = server.n, server.sigma
        if self.virtual:
            known = pool.n, pool.mu, pool.sigma()
            if n is not None and sigma is not None:  # Statistics are cached (stats_scope).
                n = torch.where(now, known[0].float(), n)
                sigma = torch.where(now[:, None, None], known[2].float(), sigma)
                known = n, means, sigma
            z, y = draw(*known, self.virtual, fold(k, 1))
            z = z.relu() if self.virtual_relu else z
            if len(y):
                head = self.calibrate.run(loss, head, self.calibrate.batches(z, y, fold(k, 2)))
        return Server(head, means, server.seen | now, n, sigma)

    def personal_params(self, down: Knowledge, up: Gaussians | None, state: State, client: Client) -> Params:
        return state.params if up else state.params | down.head

    def reduces_to(self) -> str | None:
        if self.lam == 0 and self.virtual == 0:
            return "With lam = 0 and virtual = 0 this is FedGH with server_mode = per_client_mean."
        return None
