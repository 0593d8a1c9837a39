"""FedAPEN. Qin et al., KDD 2023. https://doi.org/10.1145/3580305.3599344

client:  A_k: a few samples set aside, the adaptability set;  p, s: logits of w_k and of m;  e = lam_k p + (1 - lam_k) s
         lam_k <- SGD(CE(e); A_k), both models fixed, then clipped to [0, 1];   it predicts by e
         w_k   <- argmin CE(p) + KL(s || p) + CE(e), from where it stopped, both models in one step on every batch
         m_k    = argmin CE(s) + KL(p || s) + CE(e), from m_t;   up: m_k
server:  m_{t+1} = sum_k n_k m_k / sum_k n_k, over the clients of the round

In each loss the other model's logits are constants. The paper learns lam_k as soon as a round has ended; here it is
learnt from the m that comes down when the client takes part again, so that a round has one download, whoever is absent.
Till then it predicts with the m received last. A client's first round has no trained w_k to weigh, and lam_k = 1/2. A_k
covers every class of two samples or more; where it is too small for that, lam_k stays. The released code averages
equally (uniform), and never applies the decay of the rate that it computes; there too FedEN learns lam_k, to predict
with.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.batch import Step
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import cross_entropy, wmean
from ..core.model import Predictor
from ..core.payloads import Params, about, payload
from ..core.prng import Key, permutation
from ..core.task import Round
from ..core.traits import Traits
from ._mutual_learning import Losses, Mutual, Shared, Update, kl_from_peer, shared_model, train_both

PREDICTORS = ("ensemble", "equal", "private", "shared")


@payload
class State:
    params: Params = about("w_k, the client's own model")
    lam: Tensor = about("lam_k, weight of the own model in the ensemble []")
    seen: Tensor = about("whether the own model was ever trained []")
    draw: Tensor = about("the key that the adaptability set is drawn with []")


class Held(NamedTuple):
    """The adaptability set: rows set aside to fit the weight; ``w`` is 1 for real rows and 0 for padding."""

    x: Tensor
    y: Tensor
    w: Tensor
    covers: Tensor  # True if the set contains every class that has two rows or more.


@dataclass(frozen=True)
class FedAPEN(Mutual[State]):
    share: float = setting(0.05, "share of the training samples set aside for lam_k", "public code")
    lam_lr: float = setting(1e-3, "learning rate of lam_k", "public code")
    lam_passes: int = setting(10, "passes over the adaptability set", "public code")
    adaptive: bool = setting(True, "train with the learnt lam_k; otherwise with 1/2", "paper")
    kl_weight: float = setting(1.0, "weight of the divergence of predictions", "paper")
    ensemble_weight: float = setting(1.0, "weight of the loss of the ensemble", "paper")
    predict: str = setting("ensemble", f"who predicts for a client: {', '.join(PREDICTORS)}", "paper")

    traits: ClassVar[Traits] = Mutual.traits._replace(
        variants={"feden": {"adaptive": False}, "fml-ae": {"ensemble_weight": 0.0}}
    )

    def __post_init__(self) -> None:
        within(self, 0, "share", high=0.5)
        within(self, 0, "lam_lr", "lam_passes", "kl_weight", "ensemble_weight")
        one_of(self, "predict", PREDICTORS)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init(), torch.tensor(0.5), torch.tensor(False), k)

    def client_update(self, down: Shared, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        rest, held = self.split(client, state.draw)
        lam = self._current_weight(down, state, client, held)
        losses = self.losses(lam if self.adaptive else torch.tensor(0.5))
        own, shared = train_both(self.optim, losses, state.params, down.params, rest, k)
        return Update(shared, client.n), State(own, lam, torch.ones_like(state.seen), state.draw)

    def losses(self, lam: Tensor) -> Losses:
        def losses(own: Step, shared: Step) -> tuple[Tensor, Tensor]:
            return self._loss(lam, own, shared), self._loss(1 - lam, shared, own)

        return losses

    def _loss(self, weight: Tensor, of: Step, peer: Step) -> Tensor:
        value = cross_entropy(of.logits, of.batch)
        if self.kl_weight:
            value = value + self.kl_weight * kl_from_peer(of, peer)
        if self.ensemble_weight:
            together = weight * of.logits + (1 - weight) * peer.logits.detach()
            value = value + self.ensemble_weight * cross_entropy(together, of.batch)
        return value

    # -- the weight ---------------------------------------------------------------------------------------------------

    def _current_weight(self, down: Shared, state: State, client: Client, held: Held) -> Tensor:
        """Return lam_k for the shared model that was received."""
        if len(held.x) == 0:
            return state.lam
        own, shared = client.model(state.params, held.x), shared_model(client)(down.params, held.x)
        return torch.where(state.seen & held.covers, self.fit_weight(state.lam, own, shared, held), state.lam)

    def fit_weight(self, lam: Tensor, own: Tensor, shared: Tensor, held: Held) -> Tensor:
        """Fit lam by plain gradient steps on CE(e), given the logits of both models."""
        size = self.optim.batch_size
        batches = list(zip(*(v.split(size) for v in (own, shared, held.y, held.w)), strict=True))
        for p, s, y, w in batches * self.lam_passes:
            gap, q = p - s, (lam * p + (1 - lam) * s).softmax(1)
            slope = (q * gap).sum(1) - gap.gather(1, y[:, None])[:, 0]
            lam = (lam - self.lam_lr * wmean(slope, w)).clamp(0, 1)
        return lam

    def split(self, client: Client, draw: Key) -> tuple[Client, Held]:
        """Split the client's rows into rows to train on and rows set aside, in the same way in every round.

        One row of each class is set aside first, then further rows of the classes in turn. The number of rows set
        aside follows from the number of rows alone, so that without padding the rows to train on contain no padding
        either, and batch statistics are right.
        """
        size, count = len(client.x), self._count(client.n)
        most, start = int(self._count(torch.tensor(size))), client.n - count
        order, slots = self._order(client, draw), torch.arange(most)
        rest, aside = order[: size - most], order[(start + slots).clamp(max=size - 1).long()]
        members, w = client.members(), (slots < count).float()
        covered = (members[aside] * w[:, None]).sum(0) > 0
        held = Held(client.x[aside], client.y[aside], w, (covered | (members.sum(0) < 2)).all())
        return replace(client, x=client.x[rest], y=client.y[rest], n=start), held

    def _order(self, client: Client, draw: Key) -> Tensor:
        """Return row indices: rows to train on, then rows by rising priority of being set aside, then padding."""
        if self.share == 0:
            return torch.arange(len(client.x))
        rows = permutation(draw, len(client.x), client.n)
        members = client.members()[rows]
        of_class, place = (members * members.sum(0)).sum(1), (members * members.cumsum(0)).sum(1)
        turn = torch.where(
            of_class > 1, (place - 1) / of_class, 2
        )  # 0 for the first row of a class, 2 for an only row.
        return rows[torch.where(members.sum(1) > 0, -turn, 1).argsort(stable=True)]

    def _count(self, n: Tensor) -> Tensor:
        """Return how many of ``n`` rows are set aside: at least one, at most all but two; 0 if ``share`` is 0."""
        if self.share == 0:
            return torch.zeros_like(n)
        wanted = (self.share * n.double()).round().clamp(min=1)
        return torch.minimum(wanted, (n.double() - 2).clamp(min=0)).to(n.dtype)

    # -- predictions --------------------------------------------------------------------------------------------------

    def personal_params(self, down: Shared, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def personal_predictor(self, down: Shared, up: Update | None, state: State, client: Client) -> Predictor:
        """Predict with the ensemble; before training, first fit the weight to the shared model received."""
        lam = {"equal": 0.5, "private": 1.0, "shared": 0.0}.get(self.predict, state.lam)
        if self.predict == "ensemble" and up is None:
            lam = self._current_weight(down, state, client, self.split(client, state.draw)[1])
        model, shared = client.model, shared_model(client)
        return lambda x: lam * model(state.params, x) + (1 - lam) * shared(down.params, x)

    def reduces_to(self) -> str | None:
        parts = []
        if self.kl_weight == 0 and self.ensemble_weight == 0:
            parts.append("With kl_weight = 0 and ensemble_weight = 0 both models are trained alone.")
        if self.share == 0:
            parts.append("With share = 0 the weight of the ensemble stays 1/2.")
        return " ".join(parts) or None
