"""Run a method for a few exchanges on a few rows, before or beside the real run.

Methods are pure functions, so a dry run changes nothing in the real run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from ..aggregation import robust
from ..aggregation.policy import AggregationPolicy
from ..core.client import Client
from ..core.contract import exchanges_of
from ..core.hooks import HasOptimiser, TrainsAfterUpload
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..core.prng import key
from ..core.replies import Replies
from ..core.task import Reply, Round
from ..typing import ClientId
from . import method_calls
from .participation import take_part
from .pool import ClientPool, replace_rows
from .server_side import ServerSideStates
from .state_store import MemoryStore

# Measures one piece of work in an exchange. Arguments: the exchange, the client (None for the server), and the kind of
# work ("local", "personal" or "server").
Meter = Callable[[Round, ClientId | None, str], AbstractContextManager[Any]]


class Exchange(NamedTuple):
    """One client's exchange with the server in a dry run, with the state that the client keeps afterwards."""

    round: Round
    client: ClientId
    download: Payload
    upload: Payload
    state: Payload


def select_representatives(method: AnyMethod, pool: ClientPool) -> dict[ClientId, Client]:
    """Return the first client of each architecture, cut to one batch of rows."""
    rows = method.optim.batch_size if isinstance(method, HasOptimiser) else 32
    first: dict[str, ClientId] = {}
    for client_id in pool.ids:
        first.setdefault(pool.models[client_id].name, client_id)
    return {client_id: first_rows(pool.client(client_id), rows) for client_id in first.values()}


def dry_run(
    method: AnyMethod,
    pool: ClientPool,
    seed: int,
    rounds: int = 1,
    cohort: int = 1,
    clients: Mapping[ClientId, Client] | None = None,
    meter: Meter = lambda exchange, client, work: nullcontext(),
    guard: robust.RobustAggregation | None = None,
    budget: int | None = None,
) -> Iterator[Exchange]:
    """Run whole rounds in order and yield the exchange of every client. A caller may stop after any exchange.

    Args:
        method: the method that is tried out.
        pool: the clients of the run, which determine what the server knows.
        seed: seed of the run; keys are those that the run itself uses.
        rounds: number of rounds.
        cohort: number of replies that the server receives. Uploads are repeated in turn if there are fewer clients.
        clients: the clients that take part. By default one for each architecture, with one batch of rows.
        meter: opened around each piece of work, to measure its cost.
        guard: robust aggregation in place of means.
        budget: number of batches of the training after uploads; None for the method's own number.

    Yields:
        One exchange for each client, exchange and round.
    """
    task = pool.task()
    participants = select_representatives(method, pool) if clients is None else clients
    server_side = ServerSideStates(method, task, seed, MemoryStore())
    server = method_calls.init_server(method, task, key(seed, "init", "server"))
    states = {i: method_calls.init_client(method, c, key(seed, "init", i)) for i, c in participants.items()}
    for r in (Round(t, at) for t in range(rounds) for at in range(len(exchanges_of(method)))):
        uploads: dict[ClientId, Payload] = {}
        for i, client in participants.items():
            down = server_side.download(server, i, r)
            k = key(seed, "local", r.t, i)
            with meter(r, i, "local"):
                part = take_part(method, r, down, states[i], client, k, budget)
            with meter(r, i, "personal") if isinstance(method, TrainsAfterUpload) else nullcontext():
                states[i] = part.finish()
            uploads[i] = part.upload
            yield Exchange(r, i, down, uploads[i], states[i])
        with torch.no_grad(), meter(r, None, "server"):
            served = server_side.serve_replies(server, _replies(uploads, cohort), r)
            replies = Replies(served, AggregationPolicy(guard, server=server))
            server = method_calls.aggregate(method, server, replies, task, r, key(seed, "server", *r))


def first_rows(client: Client, count: int) -> Client:
    """Return a client with its first rows alone."""
    return replace_rows(client, client.x[:count], client.y[:count])


def _replies(uploads: dict[ClientId, Payload], cohort: int) -> Iterator[Reply[Payload]]:
    ids = list(uploads)
    for j in range(max(cohort, len(ids))):
        yield Reply(ids[j % len(ids)], uploads[ids[j % len(ids)]])
