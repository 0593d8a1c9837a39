"""Dry runs: a few exchanges on a few rows. Methods are pure functions, so trying them out leaves no trace."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
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
from .participation import take_part
from .pool import ClientPool, with_rows
from .server_side import ServerSideStates
from .state_store import MemoryStore

# Measures a piece of work of an exchange: "local" or "personal" of a client, or that of the server (no client).
Meter = Callable[[Round, ClientId | None, str], AbstractContextManager[Any]]


class Exchange(NamedTuple):
    """One client's part in an exchange of a dry run."""

    round: Round
    client: ClientId
    download: Any
    upload: Any
    state: Any  # what the client keeps


def representatives(method: AnyMethod, pool: ClientPool) -> dict[ClientId, Client]:
    """Return the first client of each architecture, cut to one batch of rows."""
    rows = getattr(getattr(method, "optim", None), "batch_size", 32)
    first: dict[str, ClientId] = {}
    for i in pool.ids:
        first.setdefault(pool.models[i].name, i)
    return {i: _first_rows(pool.client(i), rows) for i in first.values()}


def dry_run(
    method: AnyMethod,
    pool: ClientPool,
    seed: int,
    rounds: int = 1,
    cohort: int = 1,
    clients: Mapping[ClientId, Client] | None = None,
    meter: Meter = lambda r, who, what: nullcontext(),
    guard: robust.RobustAggregation | None = None,
) -> Iterator[Exchange]:
    """Play whole rounds in order and yield every client's part in them. A caller may stop after any exchange.

    Args:
        method: the method that is tried out.
        pool: the clients of the run, which decide what the server knows.
        seed: seed of the run; keys are those that the run itself uses.
        rounds: number of rounds.
        cohort: how many replies the server gets. Where there are more than clients, uploads are repeated in turn.
        clients: the clients that take part. By default one for each architecture, with few rows.
        meter: opened around each piece of work, to measure its cost.
        guard: robust aggregation in place of means.
    """
    task = pool.task()
    cast = representatives(method, pool) if clients is None else clients
    server_side = ServerSideStates(method, task, seed, MemoryStore())
    server = method_calls.init_server(method, task, key(seed, "init", "server"))
    states = {i: method_calls.init_client(method, c, key(seed, "init", i)) for i, c in cast.items()}
    for r in (Round(t, phase) for t in range(rounds) for phase in range(method.phases)):
        uploads: dict[ClientId, Any] = {}
        for i, client in cast.items():
            down, k = server_side.download(server, i, r), key(seed, "local", r.t, i)
            with meter(r, i, "local"):
                part = take_part(method, down, states[i], client, k)
            with meter(r, i, "personal") if method.after_upload else nullcontext():
                states[i] = part.finish()
            uploads[i] = part.upload
            yield Exchange(r, i, down, uploads[i], states[i])
        with torch.no_grad(), meter(r, None, "server"):
            served = server_side.served(server, _replies(uploads, cohort), r)
            replies = Replies(served, AggregationPolicy(guard, server=server))
            server = method_calls.aggregate(method, server, replies, task, r, key(seed, "server", *r))


def _first_rows(client: Client, count: int) -> Client:
    return with_rows(client, client.x[:count], client.y[:count])


def _replies(uploads: dict[ClientId, Any], cohort: int) -> Iterator[Reply[Any]]:
    ids = list(uploads)
    for j in range(max(cohort, len(ids))):
        yield Reply(ids[j % len(ids)], uploads[ids[j % len(ids)]])
