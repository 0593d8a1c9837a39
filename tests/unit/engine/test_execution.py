"""The number of worker processes that a run takes by default."""

import os

import pytest
from support import small_runs

from atoll.engine import execution
from atoll.engine.execution import WORKER_BYTES, WORKER_COPIES, default_workers


@pytest.mark.parametrize(("shares", "workers"), [(2.5, 2), (0.5, 1), (100, 4), (None, 4)])
def test_workers_are_as_many_as_cores_and_memory_allow(
    shares: float | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four cores; the memory is that of ``shares`` workers."""
    pool = small_runs.setup("fedavg", clients=2, rows=100).pool
    weights = sum(v.nbytes for v in pool.models[pool.ids[0]].init().values())
    free = None if shares is None else int(shares * (WORKER_BYTES + WORKER_COPIES * weights))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(execution, "available_memory", lambda: free)

    assert default_workers(pool) == workers
