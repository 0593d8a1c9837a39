"""FedDF. Lin et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2006.07242

client:  w_k = SGD(w_a; D_k), from the server's model of its architecture a
server:  w_a = sum_k n_k w_k / sum_k n_k, over the clients of the round with architecture a; then, for so many steps,
         w_a <- w_a - eta grad KL(softmax(mean_k f_k(x) / T) || softmax(f_a(x) / T)), mean over a batch of public x;
         the teachers f_k are the clients of the round, of all architectures; distillation ends when accuracy on the
         server's validation samples has not risen for some steps, and w_a is the model with the highest accuracy

The server of the paper has validation samples with labels. Here it has none, so that a share of the public samples is
kept for validation, and their labels are those that the teachers give them together. The rate does not follow the
paper's cosine. Teachers are in evaluation mode; the server's running statistics
follow public batches. An architecture without clients in a round keeps its model. The mean of the divergences from the
teachers, the default of the authors' code, has the gradient of ensemble = probs. The server's models predict together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Loss
from ..core.method import Method
from ..core.model import Model, Predictor
from ..core.optim.adam import Adam
from ..core.optim.base import Memory, Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key, key, permutation
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
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


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
    validation: float = setting(
        0.1, "share of the public samples that decide when distillation ends; 0 for always so many steps", "chosen here"
    )
    check_every: int = setting(5, "steps between looks at the validation samples", "1 % of steps, as the authors' code")
    patience: int = setting(
        50, "steps without higher accuracy on the validation samples that end distillation", "10 % of steps, likewise"
    )
    temperature: float = setting(1.0, "T, what logits are divided by", "the authors' code")
    ensemble: str = setting("logits", "what is averaged over teachers: logits or probs", "paper")

    traits: ClassVar[Traits] = Traits(
        family="server-trained",
        needs=frozenset({Need.CLASSES, Need.PUBLIC_DATA}),
        why_uploads="the server distils from the predictions of each client's model",
        guards=("params",),
        as_sent="the predictions of all models on the public samples, which teach",
        variants={"fixed": {"validation": 0.0}},
    )

    def __post_init__(self) -> None:
        within(self, 0, "steps")
        within(self, 0, "validation", high=0.9)
        within(self, 1, "check_every", "patience")
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

        loss = imitation_loss(model, apart)
        if not self.validation or len(x) < 2:
            return self.server.run(loss, params, target_batches(x, target, self.server, k, self.steps))
        val, train = _validation_rows(len(x), self.validation)
        batches = target_batches(x[train], target[train], self.server, k, self.steps)
        return self._best(loss, params, batches, lambda w: _agreement(model(w, x[val]), target[val]))

    def _best(
        self, loss: Loss, params: Params, batches: Iterator[Batch], accuracy: Callable[[Params], float]
    ) -> Params:
        """Train until accuracy has not risen for ``patience`` steps; return the params with the highest accuracy."""
        best, highest, waited = params, accuracy(params), 0
        memory: Memory = {}
        while waited < self.patience and (some := list(islice(batches, self.check_every))):
            params, memory, _ = self.server.advance(loss, params, some, memory)
            waited += len(some)
            if (reached := accuracy(params)) > highest:
                best, highest, waited = params, reached, 0
        return best

    def personal_params(self, down: Group, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Server, task: Task) -> Predictor:
        models = {a: (model, _of(server, a)) for a, model in _models(task).items()}
        return lambda x: torch.stack([model(params, x) for model, params in models.values()]).mean(0)

    def reduces_to(self) -> str | None:
        return "With steps = 0 this is FedAvg, within each architecture." if self.steps == 0 else None


def _validation_rows(rows: int, share: float) -> tuple[Tensor, Tensor]:
    """Return the public rows for validation, the same in all rounds, and those to distil on; at least one of each."""
    order = permutation(key("validation"), rows)
    count = min(max(1, round(share * rows)), rows - 1)
    return order[:count], order[count:]


def _agreement(logits: Tensor, target: Tensor) -> float:
    """Return the share of rows for which a model predicts the class that the teachers predict."""
    return float((logits.argmax(1) == target.argmax(1)).double().mean())


def _models(task: Task) -> dict[str, Model]:
    """Return one model of each architecture by name: that of the first client that has it."""
    return {task.models[i].name: task.models[i] for i in reversed(task.clients)}


def _of(server: Server, architecture: str) -> Params:
    prefix = f"{architecture}/"
    return {name.removeprefix(prefix): v for name, v in server.params.items() if name.startswith(prefix)}
