"""Reconstruct inputs from the change of a model's weights."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ...clients import method_calls
from ...clients.participation import take_part
from ...clients.pool import replace_rows
from ...clients.server_side import ServerSideStates
from ...clients.state_store import MemoryStore
from ...clients.tasks import ClientTask
from ...core.client import Client
from ...core.contract import exchanges_of
from ...core.hooks import HasOptimiser, KeepsStatePerClient
from ...core.optim.sgd import SGD
from ...core.params import BUFFERS, sub
from ...core.payloads import Params, Payload
from ...core.prng import Key, fold, key, normal
from ...core.task import Round
from ...engine.setup import Setup
from .base import AttackResult, UploadFilter, mean_result

BATCH = 4  # rows whose gradient is matched
STEPS = 150  # iterations of gradient matching
CLIENTS = 3  # attacked clients


def attack_updates(upload_filter: UploadFilter, setup: Setup) -> list[AttackResult]:
    """Invert updates from a single row by division, and from one batch by gradient matching."""
    one = [abs(v) for v in _invert_clients(upload_filter, setup, 1)]
    batch = [abs(v) for v in _invert_clients(upload_filter, setup, BATCH)]
    return [
        mean_result("inversion, 1 sample", "correlation of the input that is found with the true one", one),
        mean_result(
            f"inversion, {BATCH} samples", "mean correlation of the inputs found with the nearest true one", batch
        ),
    ]


def _invert_clients(upload_filter: UploadFilter, setup: Setup, rows: int) -> Iterator[float]:
    """Yield the correlation for the first clients, each trained on its first ``rows`` rows."""
    method, pool, seed = setup.method, setup.pool, setup.config.seed
    optim = method.optim if isinstance(method, HasOptimiser) else None
    if isinstance(method, KeepsStatePerClient) or len(exchanges_of(method)) > 1 or not isinstance(optim, SGD):
        return
    step = replace(optim.for_epochs(optim.count(1) if rows == 1 else 1), batch_size=rows)
    method = replace(cast(Any, method), optim=step)
    server = method.init_server(pool.task(), key(seed, "init", "server"))
    server_side = ServerSideStates(method, pool.task(), seed, MemoryStore())
    for i in pool.ids[:CLIENTS]:
        whole = pool.client(i)
        x = whole.x[:rows]
        client = replace_rows(whole, x, whole.y[:rows])
        job = ClientTask(i, Round(0), server_side.download(server, i, Round(0)))
        state = method_calls.init_client(method, client, key(seed, "init", i))
        part = take_part(method, job.round, job.download, state, client, key(seed, "local", 0, i))
        with torch.no_grad():
            up = upload_filter(job, client, part.upload)
        start, change = _change(job.download, up)
        if _first_layer(change, x) is None:
            return
        if rows == 1:
            yield _correlation(_divide_gradients(change, x), x.flatten())
        elif set(client.model.init()) == set(start):
            guess = _match_gradients(client, start, change, step, key("inversion", i))
            yield sum(max(_correlation(g, t) for t in x.flatten(1)) for g in guess.flatten(1)) / rows


def _change(download: Payload, upload: Payload) -> tuple[Params, Params]:
    """Return the weights that are in both messages, as sent to the client, and their changes."""
    start = getattr(download, "params", {})
    sent = getattr(upload, "params", {})
    both = {n: v for n, v in start.items() if n in sent and not n.startswith(BUFFERS)}
    return both, sub({n: sent[n] for n in both}, both)


def _first_layer(change: Params, x: Tensor) -> str | None:
    """Return the prefix of a linear layer with a bias that takes the inputs, or None."""
    inputs = x[0].numel()
    names = (n.removesuffix("weight") for n, v in change.items() if n.endswith("weight") and v.shape[1:] == (inputs,))
    return next((n for n in names if n + "bias" in change), None)


def _divide_gradients(change: Params, x: Tensor) -> Tensor:
    """Compute the input of a single row from the first layer.

    The weights of a unit change by its error times the input, the bias by the error.
    """
    layer = _first_layer(change, x)
    bias = change[f"{layer}bias"]
    unit = int(bias.abs().argmax())
    return change[f"{layer}weight"][unit] / bias[unit]


def _match_gradients(client: Client, start: Params, change: Params, step: SGD, k: Key) -> Tensor:
    """Optimise inputs until their gradient equals the client's. The labels are taken as known."""
    goal = {n: -v / step.lr - step.weight_decay * start[n] for n, v in change.items()}
    x = (normal(fold(k, 0), *client.x.shape) * client.x.std() + client.x.mean()).requires_grad_()
    descent = torch.optim.LBFGS([x], lr=1.0, max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")
    loss = client.objective()
    batch = next(client.batches(k, 1, len(client.y)))

    def distance() -> Tensor:
        descent.zero_grad()
        with torch.enable_grad():
            leaves = {n: v.detach().requires_grad_() for n, v in start.items()}
            value = loss(leaves, batch._replace(x=x, y=client.y, stats={}))
            grads = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
            gap = sum((g - goal[n]).square().sum() for n, g in zip(leaves, grads, strict=True)) / _squared_norm(goal)
            gap.backward()
        return gap.detach()

    descent.step(distance)
    return x.detach()


def _squared_norm(v: Params) -> Tensor:
    return sum((t.square().sum() for t in v.values()), start=torch.zeros(())).clamp(min=1e-20)


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.flatten().double() - a.double().mean(), b.flatten().double() - b.double().mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 and torch.isfinite(a).all() else 0.0
