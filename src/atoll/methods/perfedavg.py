"""Per-FedAvg. Fallah et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2002.07948

client:  from w_t, in each step with batches B, B', B'' drawn apart:  v = w - alpha grad f(w; B)
         w <- w - beta (I - alpha H(w; B'')) grad f(v; B');   H, the Hessian: left out, or by a difference of gradients
         H g = [grad f(w + delta g; B'') - grad f(w - delta g; B'')] / (2 delta),  g = grad f(v; B')
         its own model: the received w_t after a few steps w <- w - alpha grad f(w; B) on its training samples
server:  w_{t+1} = sum_k n_k w_k / sum_k n_k

beta is the rate of optim (0.001 in public codes), whose momentum and clipping act on the outer step alone. Some public
codes use one batch for both steps, or adapt on test samples; here neither happens. The first-order form is the default,
the paper's Algorithm 1 has the Hessian.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    SGD,
    Batch,
    Client,
    Key,
    Loss,
    Params,
    Round,
    Traits,
    add,
    fold,
    gradient,
    setting,
    sub,
    weights,
    within,
)
from .fedavg import Averaging, Global, Update
from .local import State


@dataclass(frozen=True)
class PerFedAvg(Averaging[State]):
    alpha: float = setting(0.01, "rate of the steps that adapt the model to a client", "public code of FedDW")
    hessian_free: bool = setting(False, "account for the Hessian by a difference of gradients", "first order: common")
    delta: float = setting(1e-3, "how far apart these gradients are taken", "chosen here")
    adapt_steps: int = setting(1, "steps from the received model to the client's own", "paper")

    traits: ClassVar[Traits] = Averaging.traits._replace(variants={"hf": {"hessian_free": True}}, wait_free={})

    def __post_init__(self) -> None:
        within(self, 0, "alpha", "adapt_steps")
        within(self, 1e-9, "delta")

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Global, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        f = client.objective()
        params = self.optim.run(self.meta(f), down.params, self._triples(client, k))
        return Update(params, client.n, self.terms().report(params, client)), state

    def _triples(self, client: Client, k: Key) -> Iterator[Batch]:
        """Yield the batches of plain training as B', each with the B and, if needed, the B'' of the same step."""
        streams = 3 if self.hessian_free else 2
        orders = [self.optim.client_batches(client, _stream(k, i)) for i in range(streams)]
        for mine, *others in zip(*orders, strict=True):
            yield mine._replace(extra={"others": others})

    def meta(self, f: Loss) -> Loss:
        """Return a loss whose gradient at w is that of the outer step."""

        def loss(w: Params, b: Batch) -> Tensor:
            here, others = {name: v.detach() for name, v in w.items()}, b.extra["others"]
            inner, _ = gradient(f, here, others[0])
            v = w | sub(weights(w), inner, self.alpha)
            return _directed(w, self._second_order(f, here, v, b)) if self.hessian_free else f(v, b)

        return loss

    def _second_order(self, f: Loss, w: Params, v: Params, b: Batch) -> Params:
        """Return (I - alpha H(w)) grad f(v)."""
        g, stats = gradient(f, {name: x.detach() for name, x in v.items()}, b)
        b.stats.update(stats)
        ahead, behind = (
            gradient(f, w | add(weights(w), g, sign * self.delta), b.extra["others"][1])[0] for sign in (1, -1)
        )
        return sub(g, sub(ahead, behind), self.alpha / (2 * self.delta))

    def after_upload(self, down: Global, up: Update, state: State, client: Client, r: Round, k: Key) -> State:
        plain = SGD(lr=self.alpha, weight_decay=0.0, clip=0.0, momentum=0.0)
        # The first batch of several shuffles: later ones may be padding.
        batches = [next(client.batches(fold(k, -3 - i), 1, self.optim.batch_size)) for i in range(self.adapt_steps)]
        return State(plain.run(client.objective(), down.params, batches))

    def personal_params(self, down: Global, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else down.params

    def reduces_to(self) -> str | None:
        return "With alpha = 0 this is FedAvg, and no client adapts its model." if self.alpha == 0 else None


def _stream(k: Key, i: int) -> Key:
    """Return the key of the i-th order of the same rows; the first is that of plain training."""
    return k if i == 0 else fold(k, -i)


def _directed(w: Params, slope: Params) -> Tensor:
    """Return a function whose gradient is ``slope``."""
    return sum(((slope[name] * w[name]).sum() for name in slope), start=torch.zeros(()))
