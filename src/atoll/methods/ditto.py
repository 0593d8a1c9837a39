"""Ditto. Li et al., ICML 2021, Algorithm 1. https://arxiv.org/abs/2012.04221

client:  w_k = SGD(w_t; D_k), sent
         v_k <- argmin CE(v; D_k) + lam/2 ||v - w_t||^2, from where it stopped, while the upload is under way
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core import SGD, Client, Key, Optimiser, Params, Round, Traits, setting, within
from .fedavg import Averaging, Global, Update
from .fedprox import Proximal
from .local import State


@dataclass(frozen=True)
class Ditto(Averaging[State]):
    lam: float = setting(1.0, "strength of the pull of personal models to the global one", "middle of the paper's grid")
    personal_optim: Optimiser = field(
        default=SGD(),
        metadata={
            "about": "training of the personal model",
            "source": "as long as that of the global model: the authors' code",
        },
    )

    traits: ClassVar[Traits] = Averaging.traits._replace(family="dual model", wait_free={})

    def __post_init__(self) -> None:
        within(self, 0, "lam")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        return self.train(down, client, k), state

    def after_upload(
        self, down: Global, up: Update, state: State, client: Client, r: Round, k: Key, budget: int | None = None
    ) -> State:
        pull = Proximal(self.lam).bind({}, down.params, client)
        return State(self.personal_optim.fit(client.objective(pull), state.params, client, k, steps=budget))

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params

    def reduces_to(self) -> str | None:
        return "With lam = 0 the personal models are trained alone, as by Local." if self.lam == 0 else None
