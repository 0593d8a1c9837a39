"""Personal models that are evaluated together have the scores of one client at a time."""

from typing import Any

import numpy as np
import pytest
import torch
from support import small_runs

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients import group_evaluation, method_calls
from atoll.clients.group_evaluation import evaluate_models
from atoll.clients.pool import ClientPool
from atoll.clients.score_table import ClientModel, to_columns
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.core.group_scores import Columns
from atoll.core.params import weights
from atoll.core.payloads import Params
from atoll.core.task import Round
from atoll.engine.evaluator import Evaluator
from atoll.engine.run_state import RunState

UNIT = 2.3e-16  # of the last place, for numbers below 1
LOSS_GAP = 1e-6


def pool_of(**options: Any) -> ClientPool:
    return small_runs.setup("fedavg", clients=7, rows=300, **options).pool


def moved(params: Params, by: float) -> Params:
    return params | {
        name: v + by * torch.sin(torch.arange(v.numel())).view(v.shape) for name, v in weights(params).items()
    }


def one_by_one(pool: ClientPool, models: list[ClientModel], thorough: bool) -> Columns:
    loop = LoopBackend(pool, MemoryStore())
    return to_columns([loop.evaluate(pool.client(i).predictor(params), i, thorough) for i, params in models])


def assert_equal(found: Columns, wanted: Columns) -> None:
    """Counts and ranks are equal; losses follow the outputs, whose last bits depend on the rows of a pass."""
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        gap = {"rtol": LOSS_GAP} if name == "loss" else {"rtol": 0, "atol": UNIT}
        np.testing.assert_allclose(found[name], values, err_msg=name, **gap)


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("model", ["mlp:hidden=16", "small_cnn"])
def test_scores_of_models_together_equal_those_of_each(model: str, batched: bool, thorough: bool) -> None:
    """Clients 0, 2 and 5 have one model, all others their own; the order is not that of the clients."""
    pool = pool_of(models=(model,))
    shared = moved(pool.models[pool.ids[0]].init(), 0.1)
    own = {i: moved(pool.models[i].init(), 0.02 * at) for at, i in enumerate(pool.ids)}
    models = [ClientModel(i, shared if i in ("0", "2", "5") else own[i]) for i in reversed(pool.ids)]

    found = evaluate_models(pool, models, thorough=thorough, batched=batched)

    assert_equal(found, one_by_one(pool, models, thorough))


@pytest.mark.parametrize("limit", ["ROWS", "STACKED_ROWS", "STACKED_BYTES", "SHARED_ROWS"])
def test_small_parts_give_the_same_scores(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_evaluation, limit, 10)
    pool = pool_of(models=("mlp:hidden=16",))
    first = pool.models[pool.ids[0]].init()
    models = [ClientModel(i, first if at < 3 else moved(first, at)) for at, i in enumerate(pool.ids)]

    assert_equal(evaluate_models(pool, models, batched=True), one_by_one(pool, models, thorough=True))


@pytest.mark.parametrize("backend", [LoopBackend, VmapBackend])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "fedproto", "fedapen"])
def test_clients_without_training_have_the_scores_of_their_first_models(name: str, backend: type[LoopBackend]) -> None:
    made = small_runs.setup(name, clients=4, rows=300)
    pool, store = made.pool, MemoryStore()
    evaluator = Evaluator(made.method, pool, backend(pool, store), 0, MemoryStore())
    run_state, server = RunState(), evaluator.first_server()
    evaluator.evaluate_personal(run_state, server)

    loop, downloads = LoopBackend(pool, store), ServerSideStates(made.method, pool.task(), 0, MemoryStore())
    for i in pool.ids:
        source = downloads.download(server, i, Round(0)), None, loop.state(made.method, 0, i), pool.client(i)
        wanted = loop.evaluate(method_calls.personal_predictor(made.method, *source), i)
        found = dict(run_state.after[i])
        assert found.pop("loss") == pytest.approx(wanted.pop("loss"), rel=0, abs=LOSS_GAP)
        assert found == pytest.approx(wanted, rel=0, abs=UNIT, nan_ok=True)
