"""Train a client's own model and a shared one together, as FML, FedKD and FedAPEN do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch, Step
from ..core.client import Client
from ..core.hyperparams import setting
from ..core.losses import wmean
from ..core.method import Method, StateT
from ..core.model import Model, Predictor
from ..core.optim.base import Memory, Optimiser
from ..core.optim.sgd import SGD
from ..core.params import add_prefix, part, strip_prefix
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..errors import AtollError
from ..typing import ClientId

OWN, SHARED = "own", "shared"  # Prefixes of the params of the two models while both are trained.
# (own step, shared step) -> (own loss, shared loss), each with the other model held constant
Losses = Callable[[Step, Step], tuple[Tensor, Tensor]]


@payload
class Shared:  # the server's state, and what it sends
    params: Params = about("m_t, the shared model")


@payload
class Update:
    params: Params = about("m_k, the shared model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


@dataclass(frozen=True)
class Mutual(Method[Shared, StateT, Shared, Update]):
    """Base of the methods that send the whole shared model and average it."""

    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, of both models"})
    uniform: bool = setting(False, "average shared models equally, not by samples", "chosen here; true in public code")

    traits: ClassVar[Traits] = Traits(
        family="mutual",
        needs=frozenset({Need.CLASSES, Need.SHARED_MODEL}),
        server_reads=Reads.SUMS,
        guards=("params",),
    )

    def init_server(self, task: Task, k: Key) -> Shared:
        return Shared(shared_model(task).init())

    def broadcast(self, server: Shared, to: ClientId, task: Task, r: Round, k: Key) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Shared:
        return Shared(mean(replies, "params", weight=None if self.uniform else "n"))

    def generic_predictor(self, server: Shared, task: Task) -> Predictor:
        return lambda x: shared_model(task)(server.params, x)


def shared_model(of: Client | Task) -> Model:
    """Return the shared model; raise an AtollError if the run has none."""
    if of.proxy is None:
        raise AtollError("Mutual learning needs a shared model, and the run has none. Name one with --shared-model.")
    return of.proxy


def train_both(
    optim: Optimiser, losses: Losses, own: Params, shared: Params, client: Client, k: Key
) -> tuple[Params, Params]:
    """Train both models, each on its own loss: one forward pass of both, then one step of both."""
    models = {OWN: client.model, SHARED: shared_model(client)}

    def loss(params: Params, b: Batch) -> Tensor:
        steps = []
        for name, model in models.items():
            beside = b._replace(stats={})  # The two models may have running statistics of the same name.
            steps.append(model.step(strip_prefix(params, name), beside))
            b.stats.update(add_prefix(beside.stats, name))
        of_own, of_shared = losses(*steps)
        return of_own + of_shared

    start = add_prefix(own, OWN) | add_prefix(shared, SHARED)
    params = _SeparateClipping(each=optim).run(loss, start, optim.client_batches(client, k))
    return strip_prefix(params, OWN), strip_prefix(params, SHARED)


def kl_from_peer(of: Step, peer: Step, temperature: float = 1.0) -> Tensor:
    """Return KL(p_peer || p_of), averaged over the rows of the batch; the peer is held constant."""
    target = (peer.logits.detach() / temperature).log_softmax(1)
    guess = (of.logits / temperature).log_softmax(1)
    return wmean((target.exp() * (target - guess)).sum(1), of.batch.w)


@dataclass(frozen=True)
class _SeparateClipping(Optimiser):
    """Optimiser that steps two models at once and clips the gradient of each by itself."""

    each: Optimiser = SGD()

    def _clipped(self, grads: Params) -> Params:
        return self.each._clipped(part(grads, OWN)) | self.each._clipped(part(grads, SHARED))

    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        self.each._apply(params, grads, memory)
