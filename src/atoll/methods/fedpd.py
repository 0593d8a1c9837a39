"""FedPD. Yang et al., Frontiers of Computer Science 2025, Algorithm 1. https://doi.org/10.1007/s11704-025-40840-4

client:  1. up: Z_k = f_k(x_i) of all public x_i
         2. each epoch: a_i <- a_i - eta (l_i + tau (a_i - 1)), then w_k <- SGD(CE + lam mean_i a_i l_i)    eqs. (1)-(4)
            l_i = |f_k(x_i) - Z^s_ki|, mean over the features
server:  1. H_k <- argmin mean_i |H_k(x_i) - Z_ki| + mu ||H_k - H||^2, the norm over extractors             eqs. (5)-(7)
            H = mean of the extractors of all clients, from then on
         2. down: Z^s_k = H_k(x_i)

Eq. (1) divides its first term by the number of public samples, which would leave all a_i at 1: here the step of a_i
does not (alpha_scale), and a_i stays from 0 to 1, for a negative one would push features away (clamp). The paper has no
lam. Its text and Algorithm 1 cite equations by the numbers of an earlier draft: (5), (6), (8), (9), (10), (12), (13)
for (1) to (7). Knowledge is taken in evaluation mode; running statistics follow private batches only.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.batch import Batch
from ..core.client import Client
from ..core.exchange import Exchange
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Loss
from ..core.method import Method
from ..core.model import Model
from ..core.optim.adam import Adam
from ..core.optim.base import Optimiser, check_goes_by_epochs
from ..core.optim.sgd import SGD
from ..core.params import BUFFERS, add, part, sqnorm, sub, weights
from ..core.payloads import Nothing, Params, Payload, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..errors import AtollError
from ..typing import ClientId
from ._distillation import batches_with_public, public_rows

ALPHA = BUFFERS + "alpha"  # During training the coefficients are stored among the params, like running statistics.


@payload
class Server:
    centre: Params = about("H, the mean of the extractors of all server models; nothing with knowledge = mean")
    known: Params = about("with knowledge = mean: mean features of the public samples [M, d], between two exchanges")


@payload
class PerClient:
    params: Params = about("H_k, the server's model of a client; nothing with knowledge = mean")
    sent: Tensor | None = about("Z^s_k, its features of the public samples [M, d_k]")


@payload
class State:
    params: Params = about("w_k, the client's own model")
    alpha: Tensor = about("a, how far the knowledge of each public sample is trusted [M]")


@payload
class Features:
    z: Tensor = about("Z_k, the client's features of the public samples [M, d_k]", role=Role.ACTIVATIONS)


@payload
class Knowledge:
    z: Tensor = about("Z^s_k, the server's features of the public samples [M, d_k]")


@payload
class Share:
    """Contribution of the work for one client to the server's state."""

    change: Params = about("that of the extractor of H_k, divided by the number of all clients")
    z: Tensor | None = about("Z_k, with knowledge = mean")


@dataclass(frozen=True)
class FedPD(Method[Server, State, Payload, Payload]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    server: Optimiser = field(
        default=Adam(epochs=30, batch_size=40),
        metadata={"about": "training of the server models", "source": "paper; Adam: chosen here, the paper names none"},
    )
    lam: float = setting(1.0, "strength of the pull of features to the server's", "not in the paper; chosen here")
    tau: float = setting(0.5, "strength of the pull of coefficients to 1", "paper")
    eta_alpha: float = setting(0.05, "learning rate of the coefficients", "paper")
    mu: float = setting(0.6, "strength of the pull of server models to their mean", "paper")
    adaptive: bool = setting(True, "learn the coefficients; otherwise they stay 1", "paper")
    alpha_scale: str = setting("per_sample", "per_sample, or literal: distances divided by M", "chosen here")
    alpha_solver: str = setting("gd", "one gradient step an epoch, or closed_form for the best coefficients", "paper")
    clamp: bool = setting(True, "keep coefficients from 0 to 1", "chosen here")
    knowledge: str = setting("models", "what is sent down: features of server models, or the clients' mean", "paper")
    mean_scope: str = setting("all", "whose features the mean is over: all, or arch for those of one model", "paper")
    feature_norm: str = setting("none", "layernorm brings the features of heterogeneous models to one scale", "paper")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.PUBLIC_DATA, Need.ROW_FEATURES, Need.SERVER_MODELS}),
        variants={
            "v1": {"adaptive": False, "knowledge": "mean"},
            "v2": {"knowledge": "mean"},
            "v3": {"adaptive": False},
        },
        why_uploads="the server trains a model of each client, on that client's own features",
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam", "eta_alpha", "mu")
        within(self, 1e-9, "tau")
        one_of(self, "alpha_scale", ("per_sample", "literal"))
        one_of(self, "alpha_solver", ("gd", "closed_form"))
        one_of(self, "knowledge", ("models", "mean"))
        one_of(self, "mean_scope", ("all", "arch"))
        one_of(self, "feature_norm", ("none", "layernorm"))
        check_goes_by_epochs(self, self.optim)

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init(), torch.ones(len(public_rows(client))))

    def exchanges(self) -> Sequence[Exchange]:
        return (
            Exchange(self.ask, self.answer, self.combine, self.train_server_model),
            Exchange(self.teach, self.learn, self.forget),
        )

    def answer(self, down: Nothing, state: State, client: Client, r: Round, k: Key) -> tuple[Features, State]:
        return Features(self._normed(client.model.features(state.params, public_rows(client)))), state

    def learn(self, down: Knowledge, state: State, client: Client, r: Round, k: Key) -> tuple[Nothing, State]:
        start = state.params | {ALPHA: state.alpha}
        trained = self.optim.run(self._loss(down.z, client), start, batches_with_public(client, self.optim, k))
        alpha = trained.pop(ALPHA)
        return Nothing(), State(trained, alpha)

    def _loss(self, z: Tensor, client: Client) -> Loss:
        """Return the loss CE + lam mean_i a_i l_i; at the beginning of an epoch all a_i take a step first."""
        model, rows = client.model, public_rows(client)
        if self.lam == 0:
            return client.objective()

        def loss(w: Params, b: Batch) -> Tensor:
            value = client.problem.loss(model.step(w, b).logits, b)
            alpha, beside = w[ALPHA], b.extra["public"]
            if self.adaptive and b.extra["epoch_begins"]:
                with torch.no_grad():
                    alpha = self.trust(alpha, self._apart(model.features(w, rows), z))
                b.stats[ALPHA] = alpha
            apart = self._apart(model.step(w, beside).features, z[beside.y])
            return value + self.lam * (alpha[beside.y] * apart).mean()

        return loss

    def _apart(self, features: Tensor, z: Tensor) -> Tensor:
        return (self._normed(features) - z).abs().mean(-1)

    def _normed(self, features: Tensor) -> Tensor:
        return features if self.feature_norm == "none" else F.layer_norm(features, features.shape[-1:])

    def trust(self, alpha: Tensor, apart: Tensor) -> Tensor:
        """Return the next coefficients, given the distance of each row's features from the server's."""
        slope = apart / len(apart) if self.alpha_scale == "literal" else apart
        if self.alpha_solver == "closed_form":
            alpha = 1 - slope / self.tau
        else:
            alpha = alpha - self.eta_alpha * (slope + self.tau * (alpha - 1))
        return alpha.clamp(0, 1) if self.clamp else alpha

    def personal_params(self, down: Payload, up: Payload | None, state: State, client: Client) -> Params:
        return state.params

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Server:
        if self.knowledge == "mean":
            self._check_widths(task)
            return Server({}, {})
        return Server(
            _extractor(next(iter(task.server_models.values())).init()), {}
        )  # All server models start with the same extractor.

    def _check_widths(self, task: Task) -> None:
        widths = {model.name: model.feature_dim for model in task.models.values()}
        if self.mean_scope == "all" and len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise AtollError(
                f"FedPD with knowledge = mean averages the features of all clients, but their widths differ: {listed}. "
                f"Add --width {min(widths.values())}, or average within models with --set mean_scope=arch."
            )

    def init_per_client(self, task: Task, of: ClientId, k: Key) -> PerClient:
        return PerClient({} if self.knowledge == "mean" else task.server_models[of].init(), None)

    def ask(self, server: Server, per_client: PerClient, to: ClientId, task: Task, r: Round, k: Key) -> Nothing:
        return Nothing()

    def teach(self, server: Server, per_client: PerClient, to: ClientId, task: Task, r: Round, k: Key) -> Knowledge:
        if self.knowledge == "mean":
            return Knowledge(server.known[self._circle(to, task)])
        assert per_client.sent is not None
        return Knowledge(per_client.sent)

    def forget(self, server: Server, replies: Iterable[Reply[Nothing]], task: Task, r: Round, k: Key) -> Server:
        return Server(server.centre, {})

    def _circle(self, i: ClientId, task: Task) -> str:
        """Return the name of the group of clients whose mean a client receives."""
        return task.models[i].name if self.mean_scope == "arch" else "all"

    def train_server_model(
        self, server: Server, per_client: PerClient, reply: Reply[Features], task: Task, r: Round, k: Key
    ) -> tuple[Share, PerClient]:
        z = reply.upload.z
        if self.knowledge == "mean":
            return Share({}, z), per_client
        server_model, rows = task.server_models[reply.sender], public_rows(task)
        batches = self.server.batches(rows, z, k)
        params = self.server.run(self._server_loss(server_model, server.centre), per_client.params, batches)
        change = sub(_extractor(params), _extractor(per_client.params))
        share = {name: v / len(task.clients) for name, v in change.items()}
        return Share(share, None), PerClient(params, server_model(params, rows))

    def _server_loss(self, server_model: Model, centre: Params) -> Loss:
        """Return the loss of eq. (5)."""

        def loss(w: Params, b: Batch) -> Tensor:
            apart = (server_model.step(w, b).logits - b.y).abs().mean()
            return apart + self.mu * sqnorm(sub(_extractor(w), centre))

        return loss

    def combine(self, server: Server, replies: Iterable[Reply[Share]], task: Task, r: Round, k: Key) -> Server:
        centre, sums, counts = server.centre, dict[str, Tensor](), defaultdict[str, int](int)
        for sender, share in replies:
            centre = centre | add(share.change, centre)
            if share.z is not None:
                circle = self._circle(sender, task)
                counts[circle] += 1
                sums[circle] = sums.get(circle, torch.zeros(())) + share.z.double()
        return Server(centre, {circle: (v / counts[circle]).float() for circle, v in sums.items()})

    def why_closed(self) -> str | None:
        if self.knowledge == "mean":
            return "the mean of features is computed in every round from the uploads of that round and is not stored"
        return None

    def reduces_to(self) -> str | None:
        return "With lam = 0 every client trains alone, as by Local." if self.lam == 0 else None


def _extractor(params: Params) -> Params:
    """Return the weights that server models share: all but the output layer, without running statistics."""
    return weights(part(params, "body"))
