"""FedRoD. Chen and Chao, ICLR 2022. https://arxiv.org/abs/2107.00778

client:  (b_k, g_k) = argmin CE(g(b(x)) + gamma log m_k, y), from (b_t, g_t), sent;   m_k: the samples of each class
         p_k <- argmin CE(g(z) + p(z), y),  z = b(x), g and z constant;   it predicts by g(z) + p_k(z)
server:  (b, g) = sum_k n_k (b_k, g_k) / sum_k n_k, over the clients of the round

p_k takes a step after each step of (b, g), on the features computed for that one; or, wait-free (SCD, section 3.3), it
is trained when (b_k, g_k) is final and under way. Either way nothing of p_k reaches b and g. A class without samples
counts as 1e-9 samples: log 0 times 0 is not a number. Personal heads start at 0 (chosen here), so that clients begin
with the generic model. The paper's variant in which a hypernetwork makes personal heads is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..core.batch import Batch, Step
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import cross_entropy
from ..core.optim.base import Memory, Optimiser
from ..core.optim.sgd import SGD
from ..core.params import add, part, zeros
from ..core.payloads import Params, about, payload
from ..core.prng import Key
from ..core.task import Round
from ..core.traits import Need, Traits
from .fedavg import Averaging, Global, Update

OWN = "own."  # Prefix of the personal head while both heads are trained.


@payload
class State:
    head: Params = about("p_k, the personal head")


@dataclass(frozen=True)
class FedRoD(Averaging[State]):
    personal_optim: Optimiser = field(
        default=SGD(),
        metadata={
            "about": "steps of the personal head; epochs and batches are those of optim if interleaved",
            "source": "chosen here: as for the rest",
        },
    )
    gamma: float = setting(1.0, "exponent of the class counts; 0 for plain cross-entropy", "paper")
    interleaved: bool = setting(True, "train the personal head batch by batch with the rest, or after it", "paper")

    traits: ClassVar[Traits] = Averaging.traits._replace(
        family="dual model",
        needs=frozenset({Need.CLASSES, Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}),
        wait_free={"interleaved": False},
    )

    def __post_init__(self) -> None:
        within(self, 0, "gamma")

    def init_client(self, client: Client, k: Key) -> State:
        return State(zeros(part(client.model.init(), "head")))

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        balanced = self._balanced(client)

        def loss(params: Params, b: Batch) -> Tensor:
            shared, own = _apart(params)
            step = client.model.step(shared, b)
            if not own:
                return balanced(step)
            personal = client.model.classify(own, step.features.detach())
            return balanced(step) + cross_entropy(step.logits.detach() + personal, b)

        optim = _Both(generic=self.optim, personal=self.personal_optim) if self.interleaved else self.optim
        own = {OWN + name: v for name, v in state.head.items()} if self.interleaved else {}
        params, head = _apart(optim.run(loss, down.params | own, self.optim.client_batches(client, k)))
        return Update(params, client.n, self.terms().report(params, client)), State(head) if head else state

    def _balanced(self, client: Client) -> Callable[[Step], Tensor]:
        """Return the cross-entropy of the generic logits plus gamma log m_k, with the regularisers."""
        shift = self.gamma * client.members().sum(0).clamp(min=1e-9).log()
        terms = client.terms()

        def loss(s: Step) -> Tensor:
            value = cross_entropy(s.logits + shift, s.batch)
            for term in terms:
                value = value + term(s)
            return value

        return loss

    def after_upload(
        self, down: Global, up: Update, state: State, client: Client, r: Round, k: Key, budget: int | None = None
    ) -> State:
        if self.interleaved:
            return state

        def loss(head: Params, b: Batch) -> Tensor:
            z = client.model.features(up.params, b.x)
            return cross_entropy(client.model.classify(up.params, z) + client.model.classify(head, z), b)

        return State(self.personal_optim.fit(loss, state.head, client, k, steps=budget))

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        """Add the two heads: both are linear, so the sum of their logits is that of one head."""
        shared = up.params if up else down.params
        return shared | add(part(shared, "head"), state.head)

    def reduces_to(self) -> str | None:
        return "With gamma = 0 the global model is FedAvg's." if self.gamma == 0 else None


@dataclass(frozen=True)
class _Both(Optimiser):
    """Optimiser that steps two groups of weights with an optimiser each; each clips its own gradient alone."""

    generic: Optimiser = SGD()
    personal: Optimiser = SGD()

    def _clipped(self, grads: Params) -> Params:
        shared, own = _apart(grads)
        return self.generic._clipped(shared) | {OWN + name: g for name, g in self.personal._clipped(own).items()}

    def _apply(self, params: Params, grads: Params, memory: Memory) -> None:
        shared, own = _apart(grads)
        self.generic._apply(params, shared, memory)
        self.personal._apply(params, {OWN + name: g for name, g in own.items()}, memory)


def _apart(params: Params) -> tuple[Params, Params]:
    """Split params into the shared ones and the personal head, under the names that the model uses."""
    own = {name.removeprefix(OWN): v for name, v in params.items() if name.startswith(OWN)}
    return {name: v for name, v in params.items() if not name.startswith(OWN)}, own
