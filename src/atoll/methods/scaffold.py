"""SCAFFOLD. Karimireddy et al., ICML 2020, Algorithm 1. https://arxiv.org/abs/1910.06378

client:  y_k <- y_k - eta (grad f_k(y_k) - c_k + c), K times from x;  c_k' = c_k - c + (x - y_k) / (K eta)
         up: y_k and c_k' - c_k
server:  x <- x + eta_g / m sum_k (y_k - x);  c <- c + 1/N sum_k (c_k' - c_k), over the m clients of the round, of all N

Variates are computed from the steps taken (option II). K counts them client by client. Steps must be plain: with
momentum, or by Adam, they do not add up to gradients. Weight decay is part of the loss. Running statistics have no
variates, and are averaged. What is sent is y_k; the server knows x.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import sub, weights, zeros
from ..core.payloads import Params, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId
from ._control_variates import Global, Update, check_plain_sgd, merge_updates, train_corrected


@payload
class State:
    variate: Params = about("c_k, the client's control variate")


@dataclass(frozen=True)
class SCAFFOLD(Method[Global, State, Global, Update]):
    optim: Optimiser = field(
        default=SGD(lr=0.1, weight_decay=0.0, clip=10.0, momentum=0.0),
        metadata={
            "about": "local training, by plain steps",
            "source": "plain steps: paper; clip: SCAFFOLD in the public codes of FedDyn and FedDC; rate chosen here: "
            "that of others over 1 - momentum",
        },
    )
    server_lr: float = setting(1.0, "eta_g, the server's learning rate", "paper")

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}),
        server_reads=Reads.SUMS,
        variants={"published": {"optim.clip": 0.0}},
        guards=("params",),
        star_only="its server keeps the mean of all clients' variates, so that every change must reach it in full",
    )

    def __post_init__(self) -> None:
        within(self, 0, "server_lr")
        check_plain_sgd(self, self.optim)

    def init_server(self, task: Task, k: Key) -> Global:
        params = task.model.init()
        return Global(params, zeros(weights(params)))

    def init_client(self, client: Client, k: Key) -> State:
        return State(zeros(weights(client.model.init())))

    def broadcast(self, server: Global, to: ClientId, task: Task, r: Round, k: Key) -> Global:
        return server

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        params, variate = train_corrected(self.optim, client.objective(), down, state.variate, client, k)
        return Update(params, sub(variate, state.variate)), State(variate)

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        params, variate, _ = merge_updates(server.variate, replies, task)
        eta, old = self.server_lr, weights(server.params)
        return Global(params | {name: (1 - eta) * x + eta * params[name] for name, x in old.items()}, variate)

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Global, task: Task) -> Predictor:
        return lambda x: task.model(server.params, x)
