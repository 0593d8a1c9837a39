"""FedGen. Zhu et al., ICML 2021, Algorithm 1. https://arxiv.org/abs/2105.10056

client:  w_k = argmin CE + alpha_t B' / B mean_y' CE(h(G(y')), y') + beta_t / B sum_i KL(h(G(y_i)) || p(x_i)), from w_t
         G(y): generated features for label y;  h: predictions of the head, constant in KL;  p: those of the whole model
         y': B' labels that the server has seen, drawn at random;  alpha_t = alpha 0.98^t, beta_t = beta 0.98^t
         up: w_k, and n_kc, the samples of each class
server:  G <- argmin sum_k mean_y [n_ky / n_y CE(h_k(G(y)), y)] + eta exp(-mean_ij mse(e_i, e_j) |G_i - G_j|)
         w_{t+1} = sum_k n_k w_k / sum_k n_k

Clients use G in evaluation mode, from the second round on; a label that the server has not seen is not pulled to it.
Losses are those of the released code, where the paper's server takes the mean of the heads' logits as one teacher, and
draws normal noise e, here uniform. That code multiplies each sample's loss by the weights of all samples; here it is
the sample's own. Adam starts afresh each round.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from ..aggregation import mean
from ..core.batch import Batch, Step
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Loss, Term, wmean
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser, check_goes_by_epochs
from ..core.optim.sgd import SGD
from ..core.params import part
from ..core.payloads import Nothing, Params, Role, about, payload
from ..core.prng import Key, fold
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..core.tree import stack
from ..typing import ClientId
from ._generator import Generator, draw_labels

LEAST = 1e-4  # Lower bound of alpha_t and beta_t, as in the released code.


@payload
class Global:  # the server's state, and what it sends
    params: Params = about("w_t, the global model")
    generator: Params = about("G; nothing in the first round")
    seen: Tensor = about("which labels the server has seen [C]")
    left: Tensor = about("0.98^t, what is left of alpha and beta []")


@payload
class Update:
    params: Params = about("w_k, the model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    counts: Tensor = about("n_kc, samples of each class [C]", role=Role.COUNT, count=True)


@dataclass(frozen=True)
class FedGen(Method[Global, Nothing, Global, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    teach: Optimiser = field(
        default=Adam(lr=3e-4, epochs=50, batch_size=32, weight_decay=1e-2),
        metadata={"about": "training of the generator; epochs are steps, and the rate fades", "source": "public code"},
    )
    alpha: float = setting(10.0, "strength of the loss on generated features", "public code")
    beta: float = setting(10.0, "strength of the pull of predictions to those for generated features", "public code")
    fade: float = setting(0.98, "what is left of alpha, beta and the generator's rate after a round", "public code")
    eta: float = setting(1.0, "strength of the diversity of generated features", "public code")
    gen_batch: int = setting(32, "B', generated features in each local step", "public code")
    gen_epochs: int = setting(20, "local epochs in which the generator is used", "public code")
    hidden: int = setting(256, "units of the generator's hidden layer", "public code, MNIST; 512 for CIFAR")
    noise: int = setting(32, "length of its noise", "public code, MNIST; 64 for CIFAR")

    traits: ClassVar[Traits] = Traits(
        family="server-trained",
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}),
        why_uploads="the server trains its generator with the head of each client",
        guards=("params",),
        as_sent="the clients' heads, which teach the generator",
    )

    def __post_init__(self) -> None:
        within(self, 0, "alpha", "beta", "eta", "gen_epochs")
        within(self, 0, "fade", high=1)
        within(self, 1, "gen_batch", "hidden", "noise")
        check_goes_by_epochs(self, self.optim)

    def generator(self, of: Client | Task) -> Generator:
        width = of.model.feature_dim
        return Generator(of.num_classes, width, self.hidden, self.noise)

    def init_server(self, task: Task, k: Key) -> Global:
        return Global(task.model.init(), {}, torch.zeros(task.num_classes, dtype=torch.bool), torch.ones(()))

    def broadcast(self, server: Global, to: ClientId, task: Task, r: Round, k: Key) -> Global:
        return server

    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        terms = [self.generated(down, client)] if down.generator else []
        params = self.optim.run(client.objective(*terms), down.params, self._batches(client, k))
        return Update(params, client.n, client.members().sum(0)), state

    def _batches(self, client: Client, k: Key) -> Iterator[Batch]:
        """Yield the batches of plain training, each with the number of its epoch."""
        rows = 0
        for b in self.optim.client_batches(client, k):
            yield b._replace(extra={"epoch": rows // len(client.x)})
            rows += len(b.x)

    def generated(self, down: Global, client: Client) -> Term:
        """Return the terms with alpha and beta."""
        generate, ratio = self.generator(client), self.gen_batch / self.optim.batch_size
        alpha, beta = ((s * down.left).clamp(min=min(s, LEAST)) for s in (self.alpha, self.beta))

        def term(s: Step) -> Tensor:
            if s.batch.extra["epoch"] >= self.gen_epochs:
                return torch.zeros(())

            def logits(y: Tensor, k: Key) -> Tensor:
                return client.model.classify(s.params, generate(down.generator, y, k))

            y, k = s.batch.y, fold(s.batch.k, -1)  # Dropout uses no negative numbers.
            more = draw_labels(down.seen, self.gen_batch, fold(k, 0))
            right = F.cross_entropy(logits(more, fold(k, 1)), more)
            target = logits(y, fold(k, 2)).detach().log_softmax(1)
            apart = (target.exp() * (target - s.logits.log_softmax(1))).sum(
                1
            )  # KL, written out: torch's function has no vmap rule.
            return alpha * ratio * right + beta * wmean(apart * down.seen[y], s.batch.w)

        return term

    def aggregate(self, server: Global, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Global:
        heads: list[Params] = []
        counts: list[Tensor] = []

        def uploads() -> Iterable[Update]:
            for reply in replies:
                heads.append(part(reply.upload.params, "head"))
                counts.append(reply.upload.counts)
                yield reply.upload

        params, n = mean(with_policy_of(replies, uploads()), "params", weight="n"), torch.stack(counts)
        present, start = n.sum(0) > 0, server.generator or self.generator(task).init(fold(k, 0))
        if not present.any():  # Clients may withhold the counts of classes with few rows.
            return Global(params, server.generator, server.seen, server.left * self.fade)
        teach = replace(self.teach, lr=self.teach.lr * float(server.left))
        generator = teach.run(
            self.generator_loss(task, stack(heads), n), start, self._labels(present, task, fold(k, 1))
        )
        return Global(params, generator, server.seen | present, server.left * self.fade)

    def _labels(self, present: Tensor, task: Task, k: Key) -> Iterator[Batch]:
        for step in range(self.teach.count(1)):
            own = fold(k, step)
            yield self.generator(task).batch(draw_labels(present, self.teach.batch_size, fold(own, 0)), fold(own, 1))

    def generator_loss(self, task: Task, heads: Params, n: Tensor) -> Loss:
        """Return the generator's loss, given the stacked heads of the clients and their rows of each class [K, C]."""
        generate, share = self.generator(task), n / n.sum(0).clamp(min=1)

        def loss(g: Params, b: Batch) -> Tensor:
            z = generate.step(g, b)
            logits = vmap(task.model.classify, (0, None))(heads, z)
            each = F.cross_entropy(logits.mT, b.y.expand(len(n), -1), reduction="none")
            return (share[:, b.y] * each).mean(1).sum() + self.eta * sameness(generate.noise_of(b), z)

        return loss

    def personal_params(self, down: Global, up: Update | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.params

    def generic_predictor(self, server: Global, task: Task) -> Predictor:
        return lambda x: task.model(server.params, x)

    def reduces_to(self) -> str | None:
        return "With alpha = beta = 0 this is FedAvg." if self.alpha == self.beta == 0 else None


def sameness(noises: Tensor, z: Tensor) -> Tensor:
    """Return exp(-mean_ij mse(e_i, e_j) |G_i - G_j|) over all pairs (i, j), i = j included.

    | | is a mean over features.
    """
    far = (noises[:, None] - noises).square().mean(2)
    return (-far * (z[:, None] - z).abs().mean(2)).mean().exp()
