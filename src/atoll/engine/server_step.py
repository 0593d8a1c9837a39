"""Aggregate the replies of an exchange, into the state of one server or into those of all clients."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..aggregation import fixed_point, robust
from ..aggregation.policy import AggregationPolicy
from ..aggregation.staleness import StalenessWeight
from ..clients import method_calls
from ..clients.server_side import ClientServers
from ..clients.tasks import ClientTask
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..core.prng import key
from ..core.replies import Replies
from ..core.schema import FieldConstraints
from ..core.task import Reply, Round, Task
from ..core.tree import to_contiguous
from ..typing import ClientId


def aggregate_replies(
    method: AnyMethod,
    server: Any,
    replies: Iterable[Reply[Payload]],
    task: Task,
    r: Round,
    *,
    seed: int,
    guard: robust.RobustAggregation | None = None,
    fixed: fixed_point.Fixed | None = None,
) -> Any:
    """Return the server's state after an exchange; without a server, those of all clients.

    Args:
        method: the method that is run.
        server: the server's state, or ``ClientServers``, each of which gets the replies of its neighbours and its own.
        replies: at least one reply.
        task: what the server knows of the federation.
        r: the exchange.
        seed: seed of the run.
        guard: robust aggregation in place of means.
        fixed: sums in fixed point.
    """
    if not isinstance(server, ClientServers):
        received = Replies(replies, AggregationPolicy(guard, fixed, server))
        with torch.no_grad():
            return to_contiguous(method_calls.aggregate(method, server, received, task, r, key(seed, "server", *r)))
    all_replies, states = list(replies), dict(server.states)
    for i, state in server.states.items():
        heard = [reply for reply in all_replies if reply.sender == i or reply.sender in server.neighbours[i]]
        if heard:
            states[i] = aggregate_replies(method, state, heard, task, r, seed=seed, guard=guard, fixed=fixed)
    return ClientServers(states, server.neighbours)


def discount_replies(
    weight: StalenessWeight,
    replies: Iterable[Reply[Payload]],
    jobs: Sequence[ClientTask],
    now: Callable[[ClientId], Payload],
    declared: Mapping[str, FieldConstraints],
) -> Iterator[Reply[Payload]]:
    """Yield replies with discounted uploads.

    Args:
        weight: weight of uploads by their staleness.
        replies: the replies.
        jobs: the tasks that the replies answer, with their downloads.
        now: makes the download that a client would get at present.
        declared: constraints of the uploads' tensors.
    """
    then = {job.client: job.download for job in jobs}
    for reply in replies:
        if weight.is_full(reply.staleness):
            yield reply
        else:
            upload = weight.discount(reply.upload, reply.staleness, then[reply.sender], now(reply.sender), declared)
            yield replace(reply, upload=upload)
