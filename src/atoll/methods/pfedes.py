"""pFedES. Yi et al., AAAI 2025. https://arxiv.org/abs/2311.06879

client:  1. G_t fixed:  F_k <- argmin mu CE(F(G_t(x)), y) + (1 - mu) CE(F(x), y), from where it stopped
         2. F_k fixed:  G_k = argmin CE(F_k(G(x)), y), from G_t;   up: G_k
server:  G_{t+1} = sum_k n_k G_k / sum_k n_k, over the clients of the round

The paper's n counts the samples of all clients, with which G would shrink whenever some are absent; its code does as
here. What is fixed is in evaluation mode. In phase 1 F meets two batches, of which only the plain one moves its running
statistics, because F predicts on plain images.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Loss
from ..core.method import Method
from ..core.model import Model
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import add_prefix, strip_prefix
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..errors import AtollError
from ..typing import ClientId
from .local import State

MODEL, PROXY = "model", "proxy"  # prefixes of the two networks while they are trained at once


@payload
class Proxy:  # the server's state, and what it sends
    params: Params = about("G_t, the proxy extractor")


@payload
class Update:
    params: Params = about("G_k, the proxy extractor after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


@dataclass(frozen=True)
class PFedES(Method[Proxy, State, Proxy, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    proxy_optim: Optimiser = field(
        default=SGD(epochs=10),
        metadata={
            "about": "training of the proxy",
            "source": "public code: 10 epochs for equal models, 20 for different ones",
        },
    )
    mu: float = setting(0.5, "weight of the loss on enhanced images", "public code; the paper searches up to 0.5")

    simultaneous: bool = setting(
        False, "train model and proxy at once, by the loss of phase 1", "false: paper, which argues against it"
    )

    traits: ClassVar[Traits] = Traits(
        family="proxy",
        needs=frozenset({Need.PROXY}),
        server_reads=Reads.SUMS,
        guards=("params",),
        variants={"simultaneous": {"simultaneous": True}},
    )

    def __post_init__(self) -> None:
        within(self, 0, "mu", high=1)

    def init_server(self, task: Task, k: Key) -> Proxy:
        return Proxy(_proxy(task).init())

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Proxy, to: ClientId, task: Task, r: Round, k: Key) -> Proxy:
        return server

    def client_update(self, down: Proxy, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        if self.simultaneous:
            return self._train_at_once(down, state, client, k)
        f = self.optim.fit(self._own_loss(down.params, client), state.params, client, k)

        def through(g: Params, b: Batch) -> Tensor:
            return client.problem.loss(client.model(f, _proxy(client)(g, b.x)), b)

        g = self.proxy_optim.fit(
            through, down.params, client, fold(k, -1)
        )  # Phase 1 uses the keys of epochs from 0 on.
        return Update(g, client.n), State(f)

    def _train_at_once(self, down: Proxy, state: State, client: Client, k: Key) -> tuple[Update, State]:
        """Train model and proxy on the loss of phase 1, both moving in every step."""

        def loss(params: Params, b: Batch) -> Tensor:
            own = b._replace(stats={})
            value = self._own_loss(strip_prefix(params, PROXY), client)(strip_prefix(params, MODEL), own)
            b.stats.update(add_prefix(own.stats, MODEL))
            return value

        start = add_prefix(state.params, MODEL) | add_prefix(down.params, PROXY)
        both = self.optim.fit(loss, start, client, k)
        return Update(strip_prefix(both, PROXY), client.n), State(strip_prefix(both, MODEL))

    def _own_loss(self, g: Params, client: Client) -> Loss:
        """Return the loss of phase 1."""

        def loss(f: Params, b: Batch) -> Tensor:
            enhanced = b._replace(x=_proxy(client)(g, b.x), stats={})  # Its updates of running statistics are dropped.
            plain = client.problem.loss(client.model.step(f, b).logits, b)
            return self.mu * client.problem.loss(client.model.step(f, enhanced).logits, b) + (1 - self.mu) * plain

        return loss

    def aggregate(self, server: Proxy, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Proxy:
        return Proxy(mean(replies, "params", weight="n"))

    def personal_params(self, down: Proxy, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def reduces_to(self) -> str | None:
        return "With mu = 0 every client trains alone, as by Local." if self.mu == 0 else None


def _proxy(of: Client | Task) -> Model:
    if of.proxy is None:
        raise AtollError("pFedES shares a proxy model, and there is none. Give the federation one.")
    return of.proxy
