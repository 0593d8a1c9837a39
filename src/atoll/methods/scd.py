"""SCD. Chen et al., NeurIPS 2023, Algorithm 1. https://arxiv.org/abs/2401.17124

client:  w_G,k = argmin CE(w) + lam_g D(s_tau(w) || s_tau(w_p,k)), from w_G, sent                               eq. (5)
         w_p,k <- argmin CE(w) + lam_p D(s(w) || s(w_G,k)), from where it stopped, while that is under way      eq. (4)
         s(w): the magnitudes of the Fourier transform of all weights in a row;  s_tau: the first ceil(tau d) of the d
server:  w_G = sum_k n_k w_G,k / sum_k n_k, over the clients of the round

The paper's D is a divergence only of spectra that sum to 1; on those of eqs. (4)-(5), which do not, it is least at 1/e
of the teacher's (div = raw). Here spectra are divided by their sums, after the cut (kl_sum1), or their scale counts too
(gen_kl). The paper gives no weights; the released code takes spectra as constants, whose gradient is 0, so that only a
distance from the global model acts (prox_beta, variant code). Personal models start as the global one, which the paper
leaves open. The variant gen-kl was ahead of kl_sum1 on validation samples (papers/scd/RESULTS.md).
"""

from dataclasses import dataclass, field
from itertools import cycle
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Step
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Term
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import sqnorm, sub, weights
from ..core.payloads import Params
from ..core.prng import Key
from ..core.task import Round
from ..core.traits import Traits
from ._divergences import DIVERGENCES
from ._spectrum import PADS, SCOPES, spectral_distance
from .fedavg import Averaging, Global, Update
from .local import State


@dataclass(frozen=True)
class SCD(Averaging[State]):
    personal_optim: Optimiser = field(
        default=SGD(),
        metadata={"about": "training of the personal model", "source": "5 epochs: paper, Table 4, and public code"},
    )
    lam_g: float = setting(
        1.0, "strength of the pull of global spectra to personal ones", "search of papers/scd/claim.yaml; code: 0.3"
    )
    lam_p: float = setting(
        1000.0, "strength of the pull of personal spectra to global ones", "search of papers/scd/claim.yaml; code: 0.4"
    )
    tau: float = setting(0.4, "share of the bins that the global model is compared on", "public code")
    div: str = setting("kl_sum1", f"what is pulled on: {', '.join(DIVERGENCES)}", "chosen here; raw in the paper")
    scope: str = setting("vector", f"what one transform covers: {' or '.join(SCOPES)}", "paper")
    pad: str = setting("smooth", "transforms of a fast length, by padding with zeros, or exact", "exact in the paper")
    reg_every: int = setting(1, "pull in every so many steps, so much stronger", "paper")
    prox_beta: float = setting(0.0, "weight of the distance of personal from global weights", "paper; code: 0.2")
    adapt_epochs: int = setting(5, "passes over the data of a client that joins later", "chosen here")

    traits: ClassVar[Traits] = Averaging.traits._replace(
        family="dual model",
        variants={
            "no-gm": {"lam_g": 0.0},
            "no-pm": {"lam_p": 0.0},
            "no-both": {"lam_g": 0.0, "lam_p": 0.0},
            "code": {"lam_g": 0.3, "lam_p": 0.4, "prox_beta": 0.2},
            "gen-kl": {"div": "gen_kl", "lam_g": 0.3, "lam_p": 300.0},
        },
        wait_free={},
    )

    def __post_init__(self) -> None:
        within(self, 0, "lam_g", "lam_p", "prox_beta", "adapt_epochs")
        within(self, 0.001, "tau", high=1)
        within(self, 1, "reg_every")
        one_of(self, "div", DIVERGENCES)
        one_of(self, "scope", SCOPES)
        one_of(self, "pad", PADS)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        pulls = self._pulls(self.lam_g, self.tau, state.params, client, self.optim)
        return self.train(down, client, k, *pulls), state

    def after_upload(
        self, down: Global, up: Update, state: State, client: Client, r: Round, k: Key, budget: int | None = None
    ) -> State:
        pulls = self._pulls(self.lam_p, 1.0, up.params, client, self.personal_optim)
        if self.prox_beta:
            pulls.append(_near(down.params, self.prox_beta))
        return State(self.personal_optim.fit(client.objective(*pulls), state.params, client, k, steps=budget))

    def _pulls(self, lam: float, tau: float, teacher: Params, client: Client, optim: Optimiser) -> list[Term]:
        """Return the term that pulls spectra to the teacher's spectrum, which is computed once, here."""
        if lam == 0:
            return []
        apart = spectral_distance(teacher, client.model.weight_names, self.div, tau, self.scope, self.pad)

        def term(s: Step) -> Tensor:
            return lam * apart(s.params)

        return [term if self.reg_every == 1 else _every(self.reg_every, term, client, optim.batch_size)]

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def adapt(self, server: Global, client: Client, k: Key) -> State:
        """Return the model of a client that joins after training: the global one, fine-tuned on its samples."""
        tune = self.optim.for_epochs(self.adapt_epochs)
        return State(tune.fit(client.objective(), server.params, client, k))

    def reduces_to(self) -> str | None:
        parts = []
        if self.lam_g == 0:
            parts.append("With lam_g = 0 the global model is FedAvg's.")
        if self.lam_p == 0 and self.prox_beta == 0:
            parts.append("With lam_p = 0 the personal models are trained alone, as by Local.")
        return " ".join(parts) or None


def _every(r: int, term: Term, client: Client, batch_size: int) -> Term:
    """Return the term in the steps 0, r, 2r, ... of each epoch, scaled so that its sum over an epoch stays the same.

    Positions, unlike the weight, may count steps of padding, which come last and change nothing.
    """
    positions = cycle(range(-(-len(client.x) // batch_size)))
    steps = (client.n / batch_size).ceil().clamp(min=1)
    weight = steps / (steps / r).ceil()

    def sometimes(s: Step) -> Tensor:
        return weight * term(s) if next(positions) % r == 0 else torch.zeros(())

    return sometimes


def _near(anchor: Params, beta: float) -> Term:
    """Return the term beta ||w - anchor||, not squared; the small number keeps the root smooth at 0."""

    def term(s: Step) -> Tensor:
        return beta * (sqnorm(sub(weights(s.params), anchor)) + 1e-12).sqrt()

    return term
