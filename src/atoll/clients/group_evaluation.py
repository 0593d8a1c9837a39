"""Evaluate the personal models of many clients together: fewer forward passes, and all scores at once.

Clients whose models are the same tensors share one pass over the rows of all of them. Models of one architecture can be
stacked and run in one batched pass. Scores equal those of one client at a time: counts and ranks are exact, and means
over classes differ by a unit in the last place.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ..core import vmap
from ..core.group_scores import Columns
from ..core.model import Model
from ..core.payloads import Params
from ..core.tree import stack
from ..core.vmap import functional_gradients
from .evaluation import measure_each, predict
from .pool import ClientPool, ClientRows
from .score_table import ClientModel

ROWS = 2**13  # rows that are gathered at a time for models that are the same
SHARED_ROWS = 2**8  # rows above which clients with the same model are not stacked with those of other models
STACKED_ROWS = 2**12  # rows of all clients in one batched pass
STACKED_BYTES = 2**28  # weights of all clients in one batched pass


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
        (list(chain(*groups)), _evaluate_groups(pool, [[models[at] for at in places] for places in groups], thorough))
        for groups in _groups(pool, models, batched)
    ]
    columns = {name: np.empty(len(models)) for name in found[0][1]}
    for places, scores in found:
        for name, column in columns.items():
            column[places] = scores[name]
    return columns


def _groups(pool: ClientPool, models: Sequence[ClientModel], batched: bool) -> Iterator[list[list[int]]]:
    """Yield the places of models that are evaluated together, as a list for each different model."""
    same = defaultdict[Hashable, list[int]](list)
    for at, (i, params) in enumerate(models):
        same[id(pool.models[i]), *map(id, params.values())].append(at)
    alike = defaultdict[Hashable, list[list[int]]](list)
    for places in same.values():
        i, params = models[places[0]]
        rows = sum(pool.test.size(pool.position(models[at].client)) for at in places)
        if not batched or (len(places) > 1 and rows > SHARED_ROWS):
            yield [places]
        else:  # models whose rows differ in number by less than 2 times, since the others are padded
            form = ((name, v.shape) for name, v in params.items())
            alike[pool.models[i].name, rows.bit_length(), *form].append(places)
    for groups in alike.values():
        size = sum(v.nbytes for v in models[groups[0][0]].params.values())
        most = max(1, STACKED_BYTES // max(1, size))
        yield from (groups[start : start + most] for start in range(0, len(groups), most))


def _evaluate_groups(pool: ClientPool, groups: Sequence[Sequence[ClientModel]], thorough: bool) -> Columns:
    """Evaluate several groups of clients, each of which has one model."""
    i, params = groups[0][0]
    of_groups = [[pool.position(own.client) for own in group] for group in groups]
    if len(groups) == 1:
        run = _shared_pass(pool.models[i], params, of_groups[0])
    else:
        run = _batched_pass(pool.models[i], stack([group[0].params for group in groups]), of_groups)
    at, problem = list(chain(*of_groups)), pool.problem
    y, sizes = pool.test.labels(at), [pool.test.size(position) for position in at]
    scores = measure_each(problem, run(pool.test), y, sizes, pool.metrics if thorough else None)
    val_sizes = [pool.val.size(position) for position in at]
    if any(val_sizes):
        val = problem.score_each(run(pool.val).cpu(), pool.val.labels(at).cpu(), val_sizes)
        scores["val"] = np.where(np.array(val_sizes) > 0, val, np.nan)
    else:
        scores["val"] = np.full(len(at), np.nan)
    return scores


Pass = Callable[[ClientRows], Tensor]  # outputs of the rows of clients, one after the other


def _shared_pass(model: Model, params: Params, positions: Sequence[int]) -> Pass:
    """Return the forward pass of one model over the rows of several clients."""

    def run(rows: ClientRows) -> Tensor:
        return torch.cat([predict(lambda x: model(params, x), x) for x in rows.gather(positions, ROWS)])

    return run


def _batched_pass(model: Model, params: Params, groups: Sequence[Sequence[int]]) -> Pass:
    """Return the forward pass of stacked models, each over the rows of its own group of clients."""

    def run(rows: ClientRows) -> Tensor:
        x, is_row = rows.stack_groups(groups)
        with torch.no_grad(), functional_gradients():
            outputs = torch.cat(
                [
                    vmap.batched_call(model, len(groups), params, some.contiguous())
                    for some in x.split(max(1, STACKED_ROWS // len(groups)), dim=1)
                ],
                dim=1,
            )
        return outputs[is_row]

    return run
