"""What FML, FedKD and FedAPEN share: a client's own model and a shared one, trained side by side."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..aggregation import mean
from ..core.batch import Batch, Step
from ..core.client import Client
from ..core.hyperparams import setting
from ..core.losses import wmean
from ..core.method import Method, Need, StateT
from ..core.model import Model, Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import BUFFERS, part
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.task import Reply, Round, Task
from ..errors import AtollError
from ..typing import ClientId

OWN, SHARED = "own", "shared"  # while both models move, their params are called so
Losses = Callable[
    [Step, Step], tuple[Tensor, Tensor]
]  # of the own and of the shared model, each a constant to the other


@payload
class Shared:  # the server's state, and what it sends
    params: Params = about("m_t, the shared model")


@payload
class Update:
    params: Params = about("m_k, the shared model after local training", role=Role.MODEL)
    n: Tensor = about("n_k, the number of training rows", role=Role.WEIGHT, count=True)


@dataclass(frozen=True)
class Mutual(Method[Shared, StateT, Shared, Update]):
    """What the methods have in common whose shared model travels whole and is averaged."""

    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, of both models"})
    uniform: bool = setting(False, "average shared models equally, not by rows", "chosen here; true in public code")

    family: ClassVar[str] = "mutual"
    guards: ClassVar[tuple[str, ...]] = ("params",)
    sums_uploads: ClassVar[bool] = True
    needs = frozenset({Need.SHARED_MODEL})

    def init_server(self, task: Task, k: Key) -> Shared:
        return Shared(shared_model(task).init())

    def broadcast(self, server: Shared, to: ClientId, task: Task, r: Round) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Iterable[Reply[Update]], task: Task, r: Round, k: Key) -> Shared:
        return Shared(mean(replies, "params", weight=None if self.uniform else "n"))

    def generic(self, server: Shared, task: Task) -> Predictor:
        return lambda x: shared_model(task)(server.params, x)


def shared_model(of: Client | Task) -> Model:
    if of.proxy is None:
        raise AtollError("Mutual learning needs a shared model, and there is none. Name one with --shared-model.")
    return of.proxy


def train(
    optim: Optimiser, losses: Losses, own: Params, shared: Params, client: Client, k: Key
) -> tuple[Params, Params]:
    """Train both models, each on its own loss: one forward pass of both, then one step of both."""
    models = {OWN: client.model, SHARED: shared_model(client)}

    def loss(params: Params, b: Batch) -> Tensor:
        steps = []
        for name, model in models.items():
            beside = b._replace(stats={})  # two models may have running statistics of the same name
            steps.append(model.step(_taken(params, name), beside))
            b.stats.update(_filed(beside.stats, name))
        of_own, of_shared = losses(*steps)
        return of_own + of_shared

    batches = client.batches(k, optim.epochs, optim.batch_size)
    params = _Apart(each=optim).run(loss, _filed(own, OWN) | _filed(shared, SHARED), batches)
    return _taken(params, OWN), _taken(params, SHARED)


def divergence(of: Step, peer: Step, temperature: float = 1.0) -> Tensor:
    """KL(p_peer || p_of), mean over the rows of the batch; the peer is a constant."""
    target = (peer.logits.detach() / temperature).log_softmax(1)
    guess = (of.logits / temperature).log_softmax(1)
    return wmean((target.exp() * (target - guess)).sum(1), of.batch.w)


@dataclass(frozen=True)
class _Apart(Optimiser):
    """The steps of one optimiser on two models at once: neither's clipping sees the other's gradient."""

    each: Optimiser = SGD()

    def _clipped(self, grads: Params) -> Params:
        return self.each._clipped(part(grads, OWN)) | self.each._clipped(part(grads, SHARED))

    def _apply(self, params: Params, grads: Params, memory: dict[str, Params]) -> None:
        self.each._apply(params, grads, memory)


def _filed(params: Params, model: str) -> Params:
    """Params under the name of their model; running statistics remain what they are."""
    return {
        f"{BUFFERS}{model}.{name.removeprefix(BUFFERS)}" if name.startswith(BUFFERS) else f"{model}.{name}": v
        for name, v in params.items()
    }


def _taken(params: Params, model: str) -> Params:
    """The params of one model, as it knows them."""
    return {name.replace(f"{model}.", "", 1): v for name, v in part(params, model).items()}
