"""FedDF. Lin et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2006.07242

client:  w_k = SGD(w_a; D_k), from the server's model of its architecture a
server:  w_a = sum_k n_k w_k / sum_k n_k, over the clients of the round with architecture a; then, for so many steps,
         w_a <- w_a - eta grad KL(softmax(mean_k f_k(x) / T) || softmax(f_a(x) / T)), mean over a batch of public x;
         the teachers f_k are the clients of the round, of all architectures

The paper stops when accuracy on rows with labels no longer grows; the server has none here, so that the number of steps
is fixed, and the rate does not follow its cosine. Teachers are in evaluation mode; the server's running statistics
follow public batches. An architecture without clients in a round keeps its model. The mean of the divergences from the
teachers, the default of the authors' code, has the gradient of ensemble = probs. The server's models predict together.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.method import Method
from ..core.model import Model, Predictor
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._distillation import imitation_loss, kl_divergence, public_rows, target_batches


@payload
class Server:
    params: Params = about("w_a, the models of all architectures; names begin with that of the architecture")


@payload
class Group:
    params: Params = about("w_a, the server's model of the client's architecture")


@payload
class Update:
    params: Params = about("w_k, the model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training rows", role=Role.WEIGHT, count=True)


@dataclass(frozen=True)
class FedDF(Method[Server, Nothing, Group, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    server: Optimiser = field(
        default=Adam(batch_size=128, clip=5.0),
        metadata={"about": "distillation; steps counts, its epochs do not", "source": "the authors' code"},
    )
    steps: int = setting(
        500, "steps of distillation, for each architecture", "chosen here; up to 10,000 in the authors' code"
    )
    temperature: float = setting(1.0, "T, what logits are divided by", "the authors' code")
    ensemble: str = setting("logits", "what is averaged over teachers: logits or probs", "paper")

    traits: ClassVar[Traits] = Traits(
        family="server-trained",
        needs=frozenset({Need.CLASSES, Need.PUBLIC_DATA}),
        why_uploads="the server distils from the predictions of each client's model",
        guards=("params",),
        as_sent="the predictions of all models on the public rows, which teach",
    )

    def __post_init__(self) -> None:
        within(self, 0, "steps")
        within(self, 0.001, "temperature")
        one_of(self, "ensemble", ("logits", "probs"))

    def init_server(self, task: Task, k: Key) -> Server:
        return Server({f"{a}/{name}": v for a, model in _models(task).items() for name, v in model.init().items()})

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Group:
        return Group(_of(server, task.models[to].name))

    def client_update(self, down: Group, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        return Update(self.optim.fit(client.objective(), down.params, client, k), client.n), state

    def aggregate(self, server: Server, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Server:
        models, groups = _models(task), defaultdict[str, list[Update]](list)
        for sender, up in replies:
            groups[task.models[sender].name].append(up)
        fused = {
            a: mean(with_policy_of(replies, ups), "params", weight="n", around=_of(server, a))
            for a, ups in groups.items()
        }
        if self.steps:
            target = self.target([models[a](up.params, public_rows(task)) for a, ups in groups.items() for up in ups])
            fused = {a: self._distilled(models[a], params, public_rows(task), target, k) for a, params in fused.items()}
        return Server(server.params | {f"{a}/{name}": v for a, params in fused.items() for name, v in params.items()})

    def target(self, logits: list[Tensor]) -> Tensor:
        """Return the joint prediction [M, C] of the teachers with these logits."""
        scaled = torch.stack(logits) / self.temperature
        return scaled.mean(0).softmax(1) if self.ensemble == "logits" else scaled.softmax(2).mean(0)

    def _distilled(self, model: Model, params: Params, x: Tensor, target: Tensor, k: Key) -> Params:
        def apart(target: Tensor, logits: Tensor) -> Tensor:
            return kl_divergence(target, logits / self.temperature)

        return self.server.run(
            imitation_loss(model, apart), params, target_batches(x, target, self.server, k, self.steps)
        )

    def personal_params(self, down: Group, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Server, task: Task) -> Predictor:
        models = {a: (model, _of(server, a)) for a, model in _models(task).items()}
        return lambda x: torch.stack([model(params, x) for model, params in models.values()]).mean(0)

    def reduces_to(self) -> str | None:
        return "With steps = 0 this is FedAvg, within each architecture." if self.steps == 0 else None


def _models(task: Task) -> dict[str, Model]:
    """Return one model of each architecture by name: that of the first client that has it."""
    return {task.models[i].name: task.models[i] for i in reversed(task.clients)}


def _of(server: Server, architecture: str) -> Params:
    prefix = f"{architecture}/"
    return {name.removeprefix(prefix): v for name, v in server.params.items() if name.startswith(prefix)}
