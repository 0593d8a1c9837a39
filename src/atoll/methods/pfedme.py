"""pFedMe. Dinh et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2006.08848

client:  w_k = theta_k = w_t;  then for each batch B:
         K times:  theta_k <- theta_k - eta_p (grad f(theta_k; B) + lam (theta_k - w_k));   theta_k: its own model
         w_k <- w_k - eta lam (w_k - theta_k), the gradient of the Moreau envelope of f;    up: w_k
server:  w_{t+1} = (1 - beta) w_t + beta sum_k n_k w_k / sum_k n_k

Only the clients of a round train (in the authors' code all do, and some are averaged), and batches are those of whole
epochs. Running statistics are those of theta_k, averaged without beta. The authors' code also decays theta_k by 1e-3.
Inner steps are stable below eta_p = 2 / (L + lam), for a loss of curvature L: the rates of the variant dnn are larger.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Loss
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import BUFFERS, add, sqnorm, sub, weights
from ..core.payloads import Params
from ..core.prng import Key, fold
from ..core.task import Reply, Round, Task
from ..core.traits import Traits
from .fedavg import Averaging, Global, Update
from .local import State

THETA = BUFFERS + "theta."  # During training theta is stored beside w, like running statistics.


@dataclass(frozen=True)
class PFedMe(Averaging[State]):
    optim: Optimiser = field(
        default=SGD(lr=0.01, weight_decay=0.0, clip=0.0, momentum=0.0),
        metadata={
            "about": "outer steps of w, on the envelope",
            "source": "rate: the authors' command for CNNs; plain steps: paper",
        },
    )
    personal_optim: Optimiser = field(
        default=SGD(lr=0.01, weight_decay=0.0, clip=0.0, momentum=0.0),
        metadata={
            "about": "inner steps of theta; its epochs and batch size do not count",
            "source": "rate: the authors' command for CNNs; plain steps: paper",
            "own_rate": True,
        },
    )
    steps: int = setting(5, "K, inner steps on each batch", "paper and public code")
    lam: float = setting(15.0, "strength of the pull of theta to w", "paper and public code")
    beta: float = setting(1.0, "share of the clients' average in the next global model", "public code; 2 in tuned runs")

    traits: ClassVar[Traits] = Averaging.traits._replace(
        family="dual model",
        variants={
            "dnn": {"optim.lr": 0.005, "personal_optim.lr": 0.09}
        },  # the authors' command for networks of two layers
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam", "beta")
        within(self, 1, "steps")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        f = client.objective()
        start = down.params | {THETA + name: v for name, v in down.params.items()}
        trained = self.optim.fit(self.envelope(f), start, client, k)
        theta = _theta(trained)
        params = {name: trained[name] for name in down.params}
        return Update(params, client.n, self.terms().report(params, client)), State(theta)

    def envelope(self, f: Loss) -> Loss:
        """Return the loss lam/2 ||w - theta||^2, with theta after K more steps, held constant."""

        def loss(w: Params, b: Batch) -> Tensor:
            centre = {name: v.detach() for name, v in w.items()}

            def near(theta: Params, b: Batch) -> Tensor:
                return f(theta, b) + self.lam / 2 * sqnorm(sub(weights(theta), centre))

            again = (b._replace(k=fold(b.k, i)) for i in range(self.steps))
            theta = self.personal_optim.run(near, _theta(w), again)
            b.stats.update({THETA + name: v for name, v in theta.items()})
            b.stats.update({name: v for name, v in theta.items() if name.startswith(BUFFERS)})
            return self.lam / 2 * sqnorm(sub(weights(w), theta))

        return loss

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        after = super().aggregate(server, replies, task, r, k)
        old = {name: (1 - self.beta) * v for name, v in weights(server.params).items()}
        return Global(after.params | add(old, after.params, self.beta), after.extra)

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def reduces_to(self) -> str | None:
        if self.lam * self.beta == 0:
            return "With lam = 0 or beta = 0 the global model never moves."
        return None


def _theta(params: Params) -> Params:
    return {name.removeprefix(THETA): v for name, v in params.items() if name.startswith(THETA)}
