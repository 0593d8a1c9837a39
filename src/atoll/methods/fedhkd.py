"""FedHKD. Chen et al., ICLR 2023. https://arxiv.org/abs/2301.08968

client:  w_k = argmin CE + lam mean_c dist(q_T(H_c), Q_c) + gamma / |B| sum_i dist(f(x_i), H[y_i]), from w_t
         f: features;  q_T: predictions of the head at temperature T, softmax(g(.) / T)
         up: w_k;  for each class its samples, their mean feature, with noise N(0, sigma^2), and their mean q_T(f(x))
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k
         H_c, Q_c = means of the features and predictions of class c, over clients, weighted by samples

Where models differ, only H and Q are exchanged, and clients train their own models on; the paper does not say.
Distances are Euclidean, as in the paper; the released code takes a Kullback-Leibler divergence of predictions and mean
squared errors of features, adds the same noise to all classes of a client, and keeps the means of the last client in
place of those of all. Classes that nobody sent keep their H and Q. The noise is drawn from a key that the server knows:
it shows what noise costs, and hides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.batch import Step
from ..core.class_statistics import Pool, class_means
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Term, wmean
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold, normal
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._prototypes import DISTANCES, pull_to_means
from .local import State


@payload
class Knowledge:  # the server's state, and what it sends
    params: Params = about("w_t, the global model; nothing if the clients' models differ")
    features: Tensor = about("H, mean feature of each class [C, d]", rows="seen")
    predictions: Tensor = about("Q, mean prediction for each class [C, C]", rows="seen")
    seen: Tensor = about("which classes have them [C]")


@payload
class Update:
    params: Params = about(
        "w_k, the model after local training; nothing if the clients' models differ", role=Role.MODEL
    )
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)
    counts: Tensor = about("samples of each class [C]", role=Role.COUNT, count=True)
    features: Tensor = about("mean feature of each class, with noise [C, d]", role=Role.CLASS_TABLE, rows="counts")
    predictions: Tensor = about(
        "mean prediction for each class [C, C]", role=Role.CLASS_TABLE, rows="counts", probabilities=True
    )


@dataclass(frozen=True)
class FedHKD(Method[Knowledge, State, Knowledge, Update]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    lam: float = setting(0.05, "strength of the pull of predictions for H to Q", "public code")
    gamma: float = setting(0.05, "strength of the pull of features to H", "public code")
    temperature: float = setting(0.5, "T of the predictions", "public code")
    sigma: float = setting(
        0.0, "spread of the noise on mean features", "chosen here: it hides nothing, unlike --dp; 2 in the public code"
    )
    min_share: float = setting(0.0, "classes with a smaller share of the client's samples are not sent", "off")
    q_distance: str = setting("l2", "distance of predictions: l2, or kl", "paper; kl in the public code")
    h_distance: str = setting("l2", f"distance of features: {', '.join(DISTANCES)}", "paper; mse in the public code")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.CLASSES, Need.SAME_WIDTH}),
        variants={"published": {"sigma": 2.0}},
        why_uploads="the server pools class means one client after the other",
        guards=("params",),
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam", "gamma", "sigma")
        within(self, 0.001, "temperature")
        within(self, 0, "min_share", high=1)
        one_of(self, "q_distance", ("l2", "kl"))
        one_of(self, "h_distance", DISTANCES)

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Knowledge, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        pulls = self.head_term(down, client), pull_to_means(down.features, down.seen, self.gamma, self.h_distance)
        params = self.optim.fit(client.objective(*pulls), down.params or state.params, client, k)
        z = client.model.features(params, client.x)
        n, features = class_means(z, client.members())
        _, predictions = class_means(self._soft(client.model.classify(params, z)).exp(), client.members())
        counts = torch.where(n < self.min_share * client.n, 0, n)
        noisy = features + self.sigma * normal(
            fold(k, -1), *features.shape
        )  # Local training uses the keys of epochs from 0 on.
        sent = (torch.where(counts[:, None] > 0, v, 0) for v in (noisy, predictions))
        return Update(params if down.params else {}, client.n, counts, *sent), State(params)

    def _soft(self, logits: Tensor) -> Tensor:
        """Return log q_T."""
        return (logits / self.temperature).log_softmax(1)

    def head_term(self, down: Knowledge, client: Client) -> Term:
        """Return lam times the mean distance of the head's predictions on H from Q, over the classes that have both."""

        def term(s: Step) -> Tensor:
            log_q, target = self._soft(client.model.classify(s.params, down.features)), down.predictions
            if self.q_distance == "l2":
                apart = DISTANCES["l2"](log_q.exp() - target)
            else:
                apart = (torch.xlogy(target, target) - target * log_q).sum(1)
            return self.lam * wmean(apart, down.seen.float())

        return term

    def personal_params(self, down: Knowledge, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else down.params or state.params

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Knowledge:
        c, alike = task.num_classes, len({model.name for model in task.models.values()}) <= 1
        h, q, seen = torch.zeros(c, task.feature_dim), torch.zeros(c, c), torch.zeros(c, dtype=torch.bool)
        return Knowledge(task.model.init() if alike else {}, h, q, seen)

    def broadcast(self, server: Knowledge, to: ClientId, task: Task, r: Round, k: Key) -> Knowledge:
        return server

    def aggregate(self, server: Knowledge, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Knowledge:
        c, d = server.features.shape
        h, q = Pool(c, d, covariances=False), Pool(c, c, covariances=False)

        def uploads() -> Iterable[Update]:
            for reply in replies:
                h.add(reply.upload.counts, reply.upload.features, None)
                q.add(reply.upload.counts, reply.upload.predictions, None)
                yield reply.upload

        params = mean(with_policy_of(replies, uploads()), "params", weight="n")
        now = h.n > 0
        features = torch.where(now[:, None], h.mu.float(), server.features)
        predictions = torch.where(now[:, None], q.mu.float(), server.predictions)
        return Knowledge(params, features, predictions, server.seen | now)

    def generic_predictor(self, server: Knowledge, task: Task) -> Predictor | None:
        return (lambda x: task.model(server.params, x)) if server.params else None

    def reduces_to(self) -> str | None:
        if self.lam == self.gamma == 0:
            return "With lam = gamma = 0 this is FedAvg or, where models differ, Local."
        return None
