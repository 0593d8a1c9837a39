"""Clients whose loss is s/2 (w - a)^2 in a single weight w, so that whole rounds of a method fit on paper."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from atoll.clients import method_calls
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.losses import DataLoss, Loss, Term, wmean
from atoll.core.method import Method
from atoll.core.model import Model
from atoll.core.payloads import Params
from atoll.core.prng import key
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from support import toy_models

W = "head.weight"  # [1, 1], from 0
MODEL = toy_models.identity_body(1, 1, bias=False)
EXACT = replace(toy_models.PLAIN, lr=0.25, epochs=40)  # full-batch steps until nothing moves


class Played(NamedTuple):
    """What one round left."""

    server: Any
    states: list[Any]  # of all clients, present or not
    uploads: dict[int, Any]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients minimise s/2 (w - a)^2 plus its terms, a and s being the means of a client's x and y."""

    def objective(model: Model, *terms: Term, data_loss: DataLoss) -> Loss:
        def loss(params: Params, b: Batch) -> Tensor:
            step = model.step(params, b)
            value = wmean(b.y.float(), b.w) / 2 * (params[W] - wmean(b.x[:, 0], b.w)).square().sum()
            return value + sum((term(step) for term in terms), start=torch.zeros(()))

        return loss

    monkeypatch.setattr("atoll.core.client.objective", objective)


def client(a: float, s: int = 1) -> Client:
    return toy_models.client([[a]], [s], MODEL, classes=s + 1)


def rounds(
    method: Method[Any, Any, Any, Any], clients: Sequence[Client], present: Sequence[Sequence[int]]
) -> list[Played]:
    """Play one round for each set of clients that are present."""
    task = Task(MODEL, Classes(1), tuple(str(i) for i in range(len(clients))))
    server, states = method.init_server(task, key(0)), [method_calls.init_client(method, c, key(0)) for c in clients]
    played = []
    for t, who in enumerate(present):
        down, uploads, states = method.broadcast(server, "0", task, Round(t), key(0)), {}, list(states)
        for i in who:
            uploads[i], states[i] = toy_models.participate(method, down, states[i], clients[i], key(t, i))
        with torch.no_grad():
            replies = (Reply(str(i), up) for i, up in uploads.items())
            server = method.aggregate(server, Replies(replies), task, Round(t), key(t))
        played.append(Played(server, states, uploads))
    return played


def w(params: Params) -> float:
    return float(params[W])
