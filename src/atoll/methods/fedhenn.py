"""FedHeNN. Makhija et al., ICML 2022, Algorithm 1. https://arxiv.org/abs/2202.07757

client:  w_k <- argmin CE(w; D_k) + eta_t (1 - CKA(K_k(w), K)), from where it stopped;   eta_t = eta_0 sqrt(t), t >= 0
         CKA(K, L) = <HKH, HLH> / (|HKH| |HLH|);   H = I - 1 1^T / m
         up: K_k = A_k A_k^T, A_k: its features of m public samples that the server has just drawn
server:  K = mean_k K_k, over the clients of the round

As in the released code, the first round has no pull, and K comes from the clients of the round before. That code
compares all m samples in every step; here a step compares a part of them with the same part of K (batch). K_k is taken
in evaluation mode; running statistics follow private batches only. That code also tunes for 10 epochs at the very end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation.policy import sum_for
from ..core.batch import Batch, Step
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import Term
from ..core.method import Method
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, fold, permutation
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Reads, Traits
from ..typing import ClientId
from ._distillation import sample_public_rows, select_public_rows
from .local import State


@payload
class Server:
    rows: Tensor | None = about("numbers of the public samples that K is of [m]; none before the first round")
    kernel: Tensor | None = about("K, the mean kernel of these samples [m, m]", symmetric=True)
    coming: Tensor = about("numbers of the public samples that clients are asked for [m]")


@payload
class Alignment:
    eta: float = about("eta_t, strength of the pull")
    rows: Tensor | None = about("numbers of the public samples that K is of [m], unless nothing is pulled")
    kernel: Tensor | None = about("K, the mean kernel of these samples [m, m]", symmetric=True)
    coming: Tensor = about("numbers of the public samples that the client is asked for [m]")


@payload
class Kernel:
    kernel: Tensor = about(
        "K_k, products of the client's features of the samples it was asked for [m, m]",
        role=Role.ACTIVATIONS,
        symmetric=True,
    )


@dataclass(frozen=True)
class FedHeNN(Method[Server, State, Alignment, Kernel]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training"})
    eta0: float = setting(
        0.1, "eta_0, strength of the pull in the second round", "chosen here; 0.01 for 100 rounds in the public code"
    )
    rows: int = setting(1000, "public samples of a round, drawn anew for each; all if there are fewer", "public code")
    batch: int = setting(100, "how many of them a step compares", "chosen here; all in the public code")

    traits: ClassVar[Traits] = Traits(
        family="logits/features",
        needs=frozenset({Need.PUBLIC_DATA, Need.ROW_FEATURES}),
        variants={"published": {"eta0": 0.01}},
        server_reads=Reads.SUMS,
    )

    def __post_init__(self) -> None:
        within(self, 0, "eta0")
        within(self, 3, "rows", "batch")  # With two rows all centred kernels are equal.

    def init_server(self, task: Task, k: Key) -> Server:
        return Server(None, None, sample_public_rows(task, self.rows, k))

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Alignment:
        eta = self.eta0 * sqrt(r.t)
        if eta == 0 or server.kernel is None:
            return Alignment(0.0, None, None, server.coming)
        return Alignment(eta, server.rows, server.kernel, server.coming)

    def client_update(self, down: Alignment, state: State, client: Client, r: Round, k: Key) -> tuple[Kernel, State]:
        pulls = [self._pull(down.eta, down.rows, down.kernel, client)] if down.rows is not None else []
        params = self.optim.fit(client.objective(*pulls), state.params, client, k)
        return Kernel(gram(client.model.features(params, select_public_rows(client, down.coming)))), State(params)

    def _pull(self, eta: float, rows: Tensor, kernel: Tensor | None, client: Client) -> Term:
        """Return the term eta (1 - CKA), on rows drawn by the key of each batch."""
        assert kernel is not None
        x = select_public_rows(client, rows)

        def term(s: Step) -> Tensor:
            own = fold(s.batch.k, -1)  # Dropout layers use the keys from 0 on.
            part = permutation(fold(own, 0), len(x))[: self.batch]
            beside = Batch(x[part], part, torch.ones(len(part)), fold(own, 1), {})
            z = client.model.step(s.params, beside).features
            z = z - z.mean(0)  # Centring the products, as CKA does, would lose digits if features hardly differ.
            return eta * (1 - cka(gram(z), kernel[part][:, part]))

        return term

    def aggregate(self, server: Server, replies: Iterable[Reply[Kernel]], task: Task, r: Round, k: Key) -> Server:
        total, count = sum_for(replies), 0
        for reply in replies:
            total.add(reply.upload.kernel)
            count += 1
        return Server(server.coming, (total.value() / count).float(), sample_public_rows(task, self.rows, k))

    def personal_params(self, down: Alignment, up: Kernel | None, state: State, client: Client) -> Params:
        return state.params

    def reduces_to(self) -> str | None:
        return "With eta0 = 0 every client trains alone, as by Local." if self.eta0 == 0 else None


def gram(features: Tensor) -> Tensor:
    """Return the products of all pairs of features, exactly symmetric."""
    products = features @ features.T
    return (products + products.T) / 2


def cka(k: Tensor, other: Tensor) -> Tensor:
    """Return the centred kernel alignment; 0 for features that are all the same."""
    a, b = _centred(k), _centred(other)
    lengths = [(v.square().sum() + 1e-20).sqrt() for v in (a, b)]  # The product of the squares might overflow.
    return (a * b).sum() / (lengths[0] * lengths[1])


def _centred(k: Tensor) -> Tensor:
    return k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
