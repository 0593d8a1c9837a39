"""FedFed. Yang et al., NeurIPS 2023. https://arxiv.org/abs/2310.05077

client:  1. in the first T_d rounds, from (f, q):  x_s = x - q(x);  x_i = x_s + N(0, sigma_i^2), i = 1, 2;  q: a VAE
            (f_k, q_k) = argmin re |x - q(x)|^2 + ce CE(f([x_1; x_2]), y) + kl KL(q) / 3 + x_ce CE(f(x), y), sent
         2. once:  up: x_1, x_2 and y of its samples
         3. then:  f_k = SGD(f; D_k and as many shared samples of both kinds, drawn evenly over classes), sent
server:  1, 3. means of f_k and q_k, weighted by samples;  2. keeps what was shared and sends it to every client once

The exchange of step 2 is as large as all training data twice over, and shows a good part of them. Its noise comes from
keys: it trains models and protects nobody. Whoever is absent from that round shares nothing. Squares and KL are means
over the numbers of a sample and of its code. The released code also trains f on mixed images and q on mosaics, treats
small and one-sided clients apart, and has images in [0, 1]; here inputs may be normalised, so q ends without a sigmoid.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Loss, cross_entropy, wmean
from ..core.method import Method
from ..core.model import Model, Predictor
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold, normal, permutation
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..errors import AtollError
from ..typing import ClientId
from ._autoencoder import build_autoencoder, reconstruct
from ._class_sampling import balanced_sampler

DISTIL, SHARE, MIX = "distil", "share", "mix"  # The stages of a run, see steps 1 to 3.
Q = "q."  # Prefix of the autoencoder's weights among those of the model.
KINDS = ("one", "two")


@payload
class Global:  # the server's state, and what it sends
    params: Params = about("f, the global model, and q until features have been shared")
    pool: Params = about("x_1, x_2 [M, ...] and y [M] of all who shared; sent once to each client")
    rounds: int = about("rounds that were completed: what this one is for follows from that")
    k: Tensor = about("key of the first q")


@payload
class Update:
    params: Params = about("f_k, and q_k in the first rounds; nothing when features are shared", role=Role.MODEL)
    pool: Params = about(
        "x_1, x_2 [n_k, ...] and y [n_k]: noisy features and labels of its samples, in one round only",
        role=Role.ACTIVATIONS,
        labels="y",
    )
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


@payload
class State:
    pool: Params = about("what was shared, once it has been received")


@payload
class PerClient:
    informed: bool = about("whether the client has what was shared")


@dataclass(frozen=True)
class FedFed(Method[Global, State, Global, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    distil: Optimiser = field(
        default=Adam(weight_decay=1e-6, epochs=1),
        metadata={"about": "training of f and q in the first rounds", "source": "public code, which has AdamW"},
    )
    distil_rounds: int = setting(15, "T_d, rounds before features are shared; a run should be longer", "public code")
    sigma1: float = setting(0.15, "deviation of the noise on x_1", "public code, for pixels from 0 to 1")
    sigma2: float = setting(0.25, "deviation of the noise on x_2", "public code, for pixels from 0 to 1")
    re: float = setting(50.0, "weight of the squares", "public code: 5, ten times as much in early epochs")
    ce: float = setting(2.0, "weight of predictions from noisy features", "public code")
    kl: float = setting(0.005, "weight of KL", "public code")
    x_ce: float = setting(0.4, "weight of predictions from samples as they are", "public code")
    share: float = setting(1.0, "share of its samples whose features a client gives away", "paper")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE}),
        vmap=False,
        star_only="its rounds are stages, and an upload of one stage is of no use in another",
        why_uploads="the server collects the features that each client shares",
        guards=("params",),
        as_sent="the features that all clients share in one pool",
    )

    def __post_init__(self) -> None:
        within(self, 0, "distil_rounds", "sigma1", "sigma2", "re", "ce", "kl", "x_ce")
        within(self, 0, "share", high=1)

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        if not client.x.is_floating_point():
            raise AtollError("FedFed adds noise to features of samples, which makes no sense for text. Use other data.")
        return State({})

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        if self.stage(down) == SHARE:
            return Update({}, self.features(down, client, k), client.n), state
        if self.stage(down) == DISTIL:
            return Update(self._distil_step(down, client, k), {}, client.n), state
        pool = down.pool or state.pool
        params = self.optim.run(client.objective(), down.params, self._mixed(client, pool, k))
        return Update(params, {}, client.n), State(pool)

    def _distil_step(self, down: Global, client: Client, k: Key) -> Params:
        """Run step 1: train the model and the autoencoder together."""
        vae, (f, q) = build_autoencoder(tuple(client.x.shape[1:]), down.k), _apart(down.params)
        start = f | {Q + name: v for name, v in (q or vae.init()).items()}
        return self.distil.fit(self.distillation(client.model, vae), start, client, k)

    def distillation(self, model: Model, vae: Model) -> Loss:
        """Return the loss of step 1. Its noise has the keys -1 and -2, because dropout uses the keys from 0 on."""

        def loss(params: Params, b: Batch) -> Tensor:
            f, q = _apart(params)
            mu, log_var = vae.features(q, b.x).chunk(2, 1)
            back = vae.classify(q, mu + (log_var / 2).exp() * normal(fold(b.k, -1), *mu.shape))
            noisy = self._noisy(b.x - back, fold(b.k, -2))
            wide = b._replace(x=torch.cat([*noisy, b.x]), y=b.y.repeat(3), w=b.w.repeat(3))
            both, plain = model.step(f, wide).logits.tensor_split([2 * len(b.x)])
            squares = (back - b.x).square().flatten(1).mean(1)
            apart = (mu.square() + log_var.exp() - log_var - 1).flatten(1).mean(1) / 2
            value = self.re * wmean(squares, b.w) + self.kl / 3 * wmean(apart, b.w)
            twice = b._replace(y=b.y.repeat(2), w=b.w.repeat(2))
            return value + self.ce * cross_entropy(both, twice) + self.x_ce * cross_entropy(plain, b)

        return loss

    def _noisy(self, x_s: Tensor, k: Key) -> list[Tensor]:
        return [x_s + s * normal(fold(k, i), *x_s.shape) for i, s in enumerate((self.sigma1, self.sigma2))]

    def features(self, down: Global, client: Client, k: Key) -> Params:
        """Run step 2: return noisy features of the client's rows, or of a share of them, without augmentation."""
        vae, (_, q) = build_autoencoder(tuple(client.x.shape[1:]), down.k), _apart(down.params)
        rows = permutation(fold(k, 0), len(client.x))[: round(self.share * len(client.x))]
        x = client.x[rows]
        x_s = x - reconstruct(vae, q or vae.init(), x) if len(x) else x
        return dict(zip(KINDS, self._noisy(x_s, fold(k, 1)), strict=True)) | {"y": client.y[rows].int()}

    def _mixed(self, client: Client, pool: Params, k: Key) -> Iterator[Batch]:
        """Yield the batches of step 3: private ones, each with as many rows of either kind from the pool."""
        batches = self.optim.client_batches(client, k)
        if not pool or not len(pool["y"]):
            yield from batches
            return
        draw = balanced_sampler(pool["y"].long())
        for i, b in enumerate(batches):
            own = fold(fold(k, -1), i)  # Private batches use the keys of epochs from 0 on.
            taken = {kind: draw(len(b.x), fold(own, j)) for j, kind in enumerate(KINDS)}
            x = torch.cat([b.x, *(pool[kind][rows] for kind, rows in taken.items())])
            y = torch.cat([b.y, *(pool["y"][rows].long() for rows in taken.values())])
            yield b._replace(x=x, y=y, w=torch.cat([b.w, torch.ones(2 * len(b.x))]))

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return _apart(up.params if up and up.params else down.params)[0]

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Global:
        return Global(task.model.init(), {}, 0, k)

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> PerClient:
        return PerClient(False)

    def stage(self, server: Global) -> str:
        if server.rounds < self.distil_rounds:
            return DISTIL
        return SHARE if server.rounds == self.distil_rounds else MIX

    def broadcast_per_client(
        self, server: Global, per_client: PerClient, to: ClientId, task: Task, r: Round, k: Key
    ) -> Global:
        return replace(server, pool={}) if per_client.informed else server

    def serve_client(
        self, server: Global, per_client: PerClient, reply: Reply[Update], task: Task, r: Round, k: Key
    ) -> tuple[Update, PerClient]:
        return reply.upload, PerClient(self.stage(server) == MIX)

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        if self.stage(server) == SHARE:
            pools = [reply.upload.pool for reply in replies]
            pool = {name: torch.cat([p[name] for p in pools]) for name in pools[0]}
            return Global(_apart(server.params)[0], pool, server.rounds + 1, server.k)
        params = mean(replies, "params", weight="n")
        return replace(server, params=params, rounds=server.rounds + 1)

    def generic_predictor(self, server: Global, task: Task) -> Predictor:
        f, _ = _apart(server.params)
        return lambda x: task.model(f, x)

    def reduces_to(self) -> str | None:
        return (
            "With share = 0 there is nothing to mix in: after the first rounds this is FedAvg."
            if not self.share
            else None
        )


def _apart(params: Params) -> tuple[Params, Params]:
    """Split params into those of the model f and those of the autoencoder q."""
    q = {name.removeprefix(Q): v for name, v in params.items() if name.startswith(Q)}
    return {name: v for name, v in params.items() if not name.startswith(Q)}, q
