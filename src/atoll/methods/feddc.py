"""FedDC. Gao et al., CVPR 2022. https://arxiv.org/abs/2203.11751

client:  theta_k = argmin CE(theta; D_k) + alpha/2 ||theta - (w - h_k)||^2 + <theta, c - c_k>, from w, in K steps
         h_k <- h_k + theta_k - w;  c_k <- c_k - c + (w - theta_k) / (K eta)
server:  w <- mean of theta_k over the round + mean of h_k over all clients;  c <- c + 1/N sum_k (change of c_k)

c is a mean gradient, as SCAFFOLD's: the paper's last updates, divided by -K eta. K counts each client's own steps; the
released code takes one number for all, and scales alpha and c by a client's share of the samples. h_k changes by
theta_k - w, which the server can tell from theta_k: no more has to be sent. Running statistics are averaged.
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
from ..core.params import add, sub, weights, zeros
from ..core.payloads import Params, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId
from ._control_variates import Global, Update, check_plain_sgd, merge_updates, train_corrected
from .fedprox import Proximal


@payload
class Server(Global):
    drift: Params = about("the mean of h_k over all clients")


@payload
class State:
    drift: Params = about("h_k, how far the client has drifted from global models")
    variate: Params = about("c_k, the client's control variate")


@dataclass(frozen=True)
class FedDC(Method[Server, State, Global, Update]):
    optim: Optimiser = field(
        default=SGD(lr=0.1, clip=10.0, momentum=0.0),
        metadata={"about": "local training, by plain steps", "source": "rate, clipping, no momentum: public code"},
    )
    alpha: float = setting(0.01, "strength of the pull to the global model less the drift", "public code, CIFAR-10")

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}),
        server_reads=Reads.SUMS,
        guards=("params",),
        star_only="its server keeps the mean of all clients' variates, so that every change must reach it in full",
    )

    def __post_init__(self) -> None:
        within(self, 0, "alpha")
        check_plain_sgd(self, self.optim)

    def init_server(self, task: Task, k: Key) -> Server:
        params = task.model.init()
        return Server(params, zeros(weights(params)), zeros(weights(params)))

    def init_client(self, client: Client, k: Key) -> State:
        params = weights(client.model.init())
        return State(zeros(params), zeros(params))

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Global:
        return Global(server.params, server.variate)

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        centre = sub(weights(down.params), state.drift)
        loss = client.objective(Proximal(self.alpha).bind({}, centre, client))
        params, variate = train_corrected(self.optim, loss, down, state.variate, client, k)
        drift = add(state.drift, sub(weights(params), down.params))
        return Update(params, sub(variate, state.variate)), State(drift, variate)

    def aggregate(self, server: Server, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Server:
        params, variate, share = merge_updates(server.variate, replies, task)
        drift = add(server.drift, sub(weights(params), server.params), share)
        return Server(params | add(weights(params), drift), variate, drift)

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Server, task: Task) -> Predictor:
        return lambda x: task.model(server.params, x)
