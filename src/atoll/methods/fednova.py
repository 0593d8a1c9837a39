"""FedNova. Wang et al., NeurIPS 2020. https://arxiv.org/abs/2007.07481

client:  y_k = SGD(x; D_k) in tau_k steps;   |a_k| = tau_k, or with momentum rho
         |a_k| = (tau_k - rho (1 - rho^tau_k) / (1 - rho)) / (1 - rho), the weight of its gradients in x - y_k
server:  d = sum_k p_k (x - y_k) / |a_k|,  p_k = n_k / sum n;   tau_eff = sum_k p_k |a_k|;   x <- x - tau_eff d

A client that takes more steps no longer pulls more. What is sent is y_k: d is (x - mean of y_k by n_k / |a_k|), times
the sum of these weights over that of samples. Running statistics are averaged with the same weights. Weight decay is
part of the loss; clipping is not accounted for. The paper's server momentum and proximal steps are left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..aggregation.policy import sum_for
from ..core.client import Client
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import weights
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..errors import AtollError
from ..typing import ClientId


@payload
class Global:  # the server's state, and what it sends
    params: Params = about("x, the global model")


@payload
class Update:
    params: Params = about("y_k, the model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    weight: Tensor = about("n_k / |a_k|, the weight of y_k in the mean", role=Role.OTHER)
    work: Tensor = about("n_k |a_k|, the client's part of tau_eff", role=Role.OTHER)


@dataclass(frozen=True)
class FedNova(Method[Global, Nothing, Global, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, by SGD"})

    traits: ClassVar[Traits] = Traits(
        needs=frozenset({Need.SAME_ARCHITECTURE}),
        server_reads=Reads.SUMS,
        guards=("params",),
        as_sent="the clients' numbers of steps",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.optim, SGD):
            found = type(self.optim).__name__
            raise AtollError(
                f"FedNova weighs the gradients of SGD by their number, but optim is {found}. Leave out --optimiser."
            )

    def init_server(self, task: Task, k: Key) -> Global:
        return Global(task.model.init())

    def broadcast(self, server: Global, to: ClientId, task: Task, r: Round, k: Key) -> Global:
        return server

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        params, _, steps = self.optim.train(client.objective(), down.params, client, k)
        norm = self.norm(steps).clamp(min=1)
        return Update(params, client.n, client.n / norm, client.n * norm), state

    def norm(self, tau: Tensor) -> Tensor:
        """Return |a|, the sum of the weights with which ``tau`` gradients enter the distance covered."""
        assert isinstance(self.optim, SGD)
        rho = self.optim.momentum
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho) if rho < 1 else tau * (tau + 1) / 2

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        totals = {name: sum_for(replies) for name in ("n", "weight", "work")}

        def uploads() -> Iterator[Update]:
            for reply in replies:
                for name, total in totals.items():
                    total.add(getattr(reply.upload, name))
                yield reply.upload

        average = mean(with_policy_of(replies, uploads()), "params", weight="weight")
        n, weight, work = (total.value() for total in totals.values())
        pace = work / n * weight / n  # tau_eff times the sum of p_k / |a_k|; 1 if all take equally many steps
        old = weights(server.params)
        return Global(average | {name: (x + pace * (average[name] - x)).to(x.dtype) for name, x in old.items()})

    def personal_params(self, down: Global, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Global, task: Task) -> Predictor:
        return lambda x: task.model(server.params, x)
