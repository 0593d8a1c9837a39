"""FedBABU. Oh et al., ICLR 2022. https://arxiv.org/abs/2106.06042

client:  b_k = SGD(b; h fixed, D_k), from b_t, sent;   h: the head that all start with, never trained
         v_k = SGD'(b_t, h; D_k), kept: the client's own model
server:  b_{t+1} = sum_k n_k b_k / sum_k n_k, over the clients of the round;   (b, h) is the generic model

The paper fine-tunes once, after the last round; here it is done in every round, so that every round can be judged, and
nothing of it enters training. It tunes all layers (tune = all) or the head alone. The released code takes a plain mean.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core import (
    SGD,
    Client,
    Key,
    Model,
    Optimiser,
    Params,
    Predictor,
    Round,
    Task,
    Traits,
    one_of,
    part,
    setting,
)
from ..errors import AtollError
from ._partial_model import Shared, Sharing, Update, fit_body, fit_head, join_parts
from .local import State


@dataclass(frozen=True)
class FedBABU(Sharing[State]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training of the body"})
    finetune: Optimiser = field(
        default=SGD(epochs=5),
        metadata={"about": "fine-tuning of the received model", "source": "5 epochs: public code"},
    )
    tune: str = setting("all", "what is fine-tuned: all, or the head alone", "the paper tries both")

    traits: ClassVar[Traits] = Sharing.traits._replace(wait_free={})

    def __post_init__(self) -> None:
        one_of(self, "tune", ("all", "head"))

    def init_server(self, task: Task, k: Key) -> Shared:
        _check_heads(task)
        return super().init_server(task, k)

    def init_client(self, client: Client, k: Key) -> State:
        return State(client.model.init())

    def client_update(self, down: Shared, state: State, client: Client, r: Round, k: Key) -> tuple[Update, State]:
        return Update(fit_body(self.optim, down.params, _head(client.model), client, k), client.n), state

    def after_upload(self, down: Shared, up: Update, state: State, client: Client, r: Round, k: Key) -> State:
        body, head = down.params, _head(client.model)
        if self.tune == "head":
            return State(join_parts(body, fit_head(self.finetune, body, head, client, k)))
        return State(self.finetune.fit(client.objective(), join_parts(body, head), client, k))

    def personal_params(self, down: Shared, up: Update | None, state: State, client: Client) -> Params:
        return state.params if up else join_parts(down.params, _head(client.model))

    def generic_predictor(self, server: Shared, task: Task) -> Predictor:
        params = join_parts(server.params, _head(task.model))
        return lambda x: task.model(params, x)

    def reduces_to(self) -> str | None:
        return "With finetune.epochs = 0 all clients use the generic model." if self.finetune.count(1) == 0 else None


def _head(model: Model) -> Params:
    return part(model.init(), "head")


def _check_heads(task: Task) -> None:
    """Raise an AtollError unless all clients start with the same head: the head is never sent."""
    first = _head(task.model)
    for model in set(task.models.values()):
        if any(not torch.equal(v, first[name]) for name, v in _head(model).items()):
            raise AtollError(
                "FedBABU never trains heads, so all clients need the same one. Leave out --init per_client."
            )
