"""A few exchanges on a few rows: methods are pure functions, so trying them out leaves no trace."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..aggregation import robust
from ..aggregation.policy import AggregationPolicy
from ..core.client import Client
from ..core.method import AnyMethod
from ..core.prng import key
from ..core.replies import Replies
from ..core.task import Reply, Round
from ..typing import ClientId
from . import method_calls
from .pool import ClientPool
from .server_side import ServerSideStates
from .state_store import MemoryStore

# Wraps a piece of work in an exchange: "local" or "personal" of a client, or that of the server (no client).
Meter = Callable[[Round, ClientId | None, str], AbstractContextManager[Any]]


class Exchange(NamedTuple):
    round: Round
    client: ClientId
    download: Any
    upload: Any
    state: Any  # what the client keeps


def representatives(method: AnyMethod, pool: ClientPool) -> dict[ClientId, Client]:
    """The first client of each architecture, cut to one batch of rows."""
    rows = getattr(getattr(method, "optim", None), "batch_size", 32)
    first: dict[str, ClientId] = {}
    for i in pool.ids:
        first.setdefault(pool.models[i].name, i)
    return {i: _cut(pool.client(i), rows) for i in first.values()}


def dry_run(
    method: AnyMethod,
    pool: ClientPool,
    seed: int,
    rounds: int = 1,
    cohort: int = 1,
    everybody: bool = False,
    meter: Meter = lambda r, who, what: nullcontext(),
    guard: robust.RobustAggregation | None = None,
) -> Iterator[Exchange]:
    """Play rounds with the actors, or with all clients; the server gets ``cohort`` replies, the uploads in turn."""
    task = pool.task()
    cast = {i: pool.client(i) for i in pool.ids} if everybody else representatives(method, pool)
    server_side = ServerSideStates(method, task, seed, MemoryStore())
    server = method_calls.init_server(method, task, key(seed, "init", "server"))
    states = {i: method_calls.init_client(method, c, key(seed, "init", i)) for i, c in cast.items()}
    for r in (Round(t, phase) for t in range(rounds) for phase in range(method.phases)):
        uploads: dict[ClientId, Any] = {}
        for i, client in cast.items():
            down, k = server_side.download(server, i, r), key(seed, "local", r.t, i)
            with torch.no_grad(), meter(r, i, "local"):
                uploads[i], states[i] = method_calls.local(method, down, states[i], client, k)
            if method.after_upload:
                with torch.no_grad(), meter(r, i, "personal"):
                    states[i] = method_calls.after_upload(method, down, uploads[i], states[i], client, k)
            yield Exchange(r, i, down, uploads[i], states[i])
        with torch.no_grad(), meter(r, None, "server"):
            served = server_side.served(server, _replies(uploads, cohort), r)
            replies = Replies(served, AggregationPolicy(guard, server=server))
            server = method_calls.aggregate(method, server, replies, task, r, key(seed, "server", *r))


def _cut(client: Client, rows: int) -> Client:
    x, y = client.x[:rows], client.y[:rows]
    return replace(client, x=x, y=y, n=torch.tensor(float(len(y))))


def _replies(uploads: dict[ClientId, Any], cohort: int) -> Iterator[Reply[Any]]:
    ids = list(uploads)
    for j in range(max(cohort, len(ids))):
        yield Reply(ids[j % len(ids)], uploads[ids[j % len(ids)]])
