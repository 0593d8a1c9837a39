"""Evaluate the personal models of many clients together: fewer forward passes, and all scores at once.

Clients whose models are the same tensors share one pass over the rows of all of them. Models of one architecture can be
stacked and run in one batched pass. Scores equal those of one client at a time: counts and ranks are exact, and means
over classes differ by a unit in the last place.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import vmap
from ..core.group_scores import Columns
from ..core.model import Model
from ..core.payloads import Params
from ..core.tree import stack
from ..core.vmap import functional_gradients
from ..typing import ClientId
from .evaluation import measure_each, predict
from .pool import ClientPool, ClientRows

ROWS = 2**13  # rows that are gathered at a time for models that are the same
STACKED_ROWS = 2**12  # rows of all clients in one batched pass
STACKED_BYTES = 2**28  # weights of all clients in one batched pass


class ClientModel(NamedTuple):
    """A client, and the weights of its personal model."""

    client: ClientId
    params: Params


def evaluate_models(
    pool: ClientPool, models: Sequence[ClientModel], *, thorough: bool = True, batched: bool = False
) -> Columns:
    """Evaluate personal models on the test and validation rows of their clients.

    Args:
        pool: the clients. Scores on the rows of all clients (``pool.global_test``) are left out.
        models: the models, at most one for each client.
        thorough: compute all metrics on the test rows, otherwise the criterion alone.
        batched: run different models of one architecture in batched passes, otherwise one after the other.

    Returns:
        The scores as columns, in the order of ``models``.
    """
    found = [
        (places, _evaluate_group(pool, [models[at] for at in places], thorough))
        for places in _groups(pool, models, batched)
    ]
    columns = {name: np.empty(len(models)) for name in found[0][1]}
    for places, scores in found:
        for name, column in columns.items():
            column[places] = scores[name]
    return columns


def _groups(pool: ClientPool, models: Sequence[ClientModel], batched: bool) -> Iterator[list[int]]:
    """Yield the places of models that are evaluated together."""
    same = defaultdict[Hashable, list[int]](list)
    for at, (i, params) in enumerate(models):
        same[id(pool.models[i]), *map(id, params.values())].append(at)
    alike = defaultdict[Hashable, list[int]](list)
    for places in same.values():
        i, params = models[places[0]]
        if len(places) > 1 or not batched:
            yield places
        else:
            alike[pool.models[i].name, *((name, v.shape) for name, v in params.items())] += places
    for places in alike.values():
        size = sum(v.nbytes for v in models[places[0]].params.values())
        most = max(1, STACKED_BYTES // max(1, size))
        yield from (places[start : start + most] for start in range(0, len(places), most))


def _evaluate_group(pool: ClientPool, models: Sequence[ClientModel], thorough: bool) -> Columns:
    i, params = models[0]
    model = pool.models[i]
    if all(other.params is params or _same(other.params, params) for other in models):
        run = _shared_pass(model, params)
    else:
        run = _batched_pass(model, stack([own.params for own in models]))
    at, problem = [pool.position(own.client) for own in models], pool.problem
    y, sizes = pool.test.labels(at), [pool.test.size(position) for position in at]
    scores = measure_each(problem, run(pool.test, at), y, sizes, pool.metrics if thorough else None)
    val_sizes = [pool.val.size(position) for position in at]
    if any(val_sizes):
        val = problem.score_each(run(pool.val, at).cpu(), pool.val.labels(at).cpu(), val_sizes)
        scores["val"] = np.where(np.array(val_sizes) > 0, val, np.nan)
    else:
        scores["val"] = np.full(len(at), np.nan)
    return scores


def _same(params: Params, others: Params) -> bool:
    return params.keys() == others.keys() and all(v is others[name] for name, v in params.items())


Pass = Callable[[ClientRows, Sequence[int]], Tensor]  # outputs of the rows of clients, one after the other


def _shared_pass(model: Model, params: Params) -> Pass:
    """Return the forward pass of one model over the rows of several clients."""

    def run(rows: ClientRows, positions: Sequence[int]) -> Tensor:
        return torch.cat([predict(lambda x: model(params, x), x) for x in rows.gather(positions, ROWS)])

    return run


def _batched_pass(model: Model, params: Params) -> Pass:
    """Return the forward pass of stacked models, each over the rows of its own client."""

    def run(rows: ClientRows, positions: Sequence[int]) -> Tensor:
        x, clients = rows.stack_padded(positions).x, len(positions)
        with torch.no_grad(), functional_gradients():
            outputs = torch.cat(
                [
                    vmap.batched_call(model, clients, params, some.contiguous())
                    for some in x.split(max(1, STACKED_ROWS // clients), dim=1)
                ],
                dim=1,
            )
        sizes = torch.tensor([rows.size(at) for at in positions])
        return outputs[torch.arange(outputs.shape[1]) < sizes[:, None]]

    return run
