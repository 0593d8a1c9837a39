"""Rounds of a server that moves one weight by an adaptive optimiser."""

from typing import Any

import torch

from atoll.core.payloads import Params
from atoll.methods._server_optimiser import AdaptiveServer, Server
from atoll.methods.fedavg import Update
from support import toy_models

TASK = toy_models.task(toy_models.mlp())


def one(w: float) -> Params:
    return {"w": torch.tensor([w])}


def update(params: Params, n: float = 1.0) -> Update:
    return Update(params, torch.tensor(n), {})


def path(kind: type[AdaptiveServer], **settings: Any) -> list[float]:
    """From 0: a round in which the clients' average is 1, and one in which they return what they got."""
    method, server, seen = kind(**settings), Server(one(0.0), {}, one(0.0), one(1e-6)), []
    for t in range(2):
        server = toy_models.aggregate(method, server, [update(one(1.0) if t == 0 else server.params)], TASK)
        seen.append(float(server.params["w"]))
    return seen
