"""FedALA. Zhang et al., AAAI 2023, Algorithm 1. https://arxiv.org/abs/2212.01197

client:  W_k <- clip(W - eta grad_W CE(mix; s D_k), 0, 1),  mix = w_k + (w_t - w_k) * W in the head, w_t in the body
         w_k <- SGD(mix; D_k), sent;   products are element by element, s D_k is a random share s of the samples
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k, over the clients of the round

W_k starts at 1, and the first time a client takes part there is nothing to mix. The second time, W_k is learned until
the loss stands still; from then on in one pass. The loss is judged after each pass, on all samples of the share (the
public code takes that of the last batch, and sets no limit to the passes). W_k is learned in evaluation mode, on
samples without augmentation. Running statistics are those of w_t.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import one_of, setting, within
from ..core.losses import Loss
from ..core.optim.base import gradient
from ..core.params import part, weights
from ..core.payloads import Params, about, payload
from ..core.prng import Key, fold, permutation
from ..core.task import Round
from ..core.traits import Need, Traits
from ..core.vmap import is_batched
from .fedavg import Averaging, Global, Update


@payload
class State:
    params: Params = about("w_k, the client's model after its last training")
    w: Params = about("W_k, the share of the global model in each weight that is mixed")
    times: Tensor = about("how often the client took part; 2 stands for more []")


@dataclass(frozen=True)
class FedALA(Averaging[State]):
    eta: float = setting(1.0, "learning rate of the shares", "public code")
    sample: float = setting(0.8, "share of the samples that the shares are learned on", "public code")
    scope: str = setting("head", "what is mixed: the head, or all weights", "paper: the last layer")
    window: int = setting(10, "passes whose losses are compared, the first time", "public code")
    still: float = setting(0.1, "standard deviation of these losses at which learning stops", "public code")
    most_passes: int = setting(20, "passes at which it stops anyway", "chosen here; no limit in the public code")

    traits: ClassVar[Traits] = Averaging.traits._replace(needs=frozenset({Need.SAME_ARCHITECTURE, Need.SEPARATE_HEAD}))

    def __post_init__(self) -> None:
        within(self, 0, "eta", "still")
        within(self, 0.001, "sample", high=1)
        within(self, 1, "window", "most_passes")
        one_of(self, "scope", ("head", "all"))

    def init_client(self, client: Client, k: Key) -> State:
        params = client.model.init()
        mixed = weights(part(params, "head") if self.scope == "head" else params)
        return State(params, {name: torch.ones_like(v) for name, v in mixed.items()}, torch.tensor(0))

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        w = self._learn_shares(down, state, client, fold(k, -1))  # Local training uses the keys of epochs from 0 on.
        up = self.train(replace(down, params=mix(state.params, down.params, w)), client, k)
        return up, State(up.params, w, (state.times + 1).clamp(max=2))

    def _learn_shares(self, down: Global, state: State, client: Client, k: Key) -> Params:
        """Learn the shares for this round.

        Under vmap all passes run, and the shares of a client that has converged no longer change; without vmap the
        loop stops there. Both give the same shares.
        """
        loss, everything = self._shares_loss(down, state, client, k)
        size = self.optim.batch_size
        batches = [
            everything._replace(x=x, y=y, w=w) for x, y, w in zip(*(v.split(size) for v in everything[:3]), strict=True)
        ]
        w, done, losses = state.w, state.times == 0, list[Tensor]()
        for _ in range(self.most_passes):
            if not is_batched() and done:
                break
            after = run_pass(loss, w, batches, self.eta)
            w = {name: torch.where(done, v, after[name]) for name, v in w.items()}
            losses.append(loss(w, everything))
            done = done | (state.times > 1) | self._has_converged(losses)
        return w

    def _shares_loss(self, down: Global, state: State, client: Client, k: Key) -> tuple[Loss, Batch]:
        """Return the loss as a function of the shares, and its rows (features, if only the head is mixed)."""
        rows = permutation(k, len(client.x), client.n)[: ceil(self.sample * len(client.x))]
        drawn = torch.arange(len(rows), device=rows.device) < (self.sample * client.n.double()).ceil()
        model, x = client.model, client.x[rows]
        if self.scope == "head":
            x = model.features(down.params, x)
        predict = model.classify if self.scope == "head" else model

        def loss(w: Params, b: Batch) -> Tensor:
            return client.problem.loss(predict(mix(state.params, down.params, w), b.x), b)

        return loss, Batch(x, client.y[rows], drawn.float(), k, {})

    def _has_converged(self, losses: list[Tensor]) -> Tensor | bool:
        if len(losses) < self.window:
            return False
        return torch.stack(losses[-self.window :]).std(correction=0) < self.still

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return up.params if up else mix(state.params, down.params, state.w)

    def reduces_to(self) -> str | None:
        return "With eta = 0 shares stay 1, and this is FedAvg." if self.eta == 0 else None


def mix(old: Params, new: Params, w: Params) -> Params:
    """Return old + (new - old) * W for weights with shares (exactly old at 0 and new at 1), and new for the others."""
    return new | {name: torch.lerp(old[name], new[name], v) for name, v in w.items()}


def run_pass(loss: Loss, w: Params, batches: Iterable[Batch], eta: float) -> Params:
    """Return the shares after one pass: one gradient step for each batch, clamped to [0, 1]."""
    for b in batches:
        grads, _ = gradient(loss, w, b)
        w = {name: (v - eta * grads[name]).clamp(0, 1) for name, v in w.items()}
    return w
