"""The rule behind ``--backend auto``: is vmap the faster side for the models it is taken for, and only for those?

Rounds of FedAvg with linear networks on both sides of the limit, and one small convolutional network: batched by vmap
in one process and one thread, and in worker processes, one for each of two cores. A figure is the median ratio of the
wall times of rounds that stood side by side; above 1, vmap is faster. ``auto.agrees`` is the share of the models for
which the rule does not take the slower side; a difference of less than a quarter is none.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from atoll.backends.loop import LoopBackend
from atoll.backends.multiprocess import ProcessBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients.state_store import MemoryStore
from atoll.config import Config
from atoll.core.prng import key
from atoll.data.dataset import Dataset
from atoll.engine.round import run_round
from atoll.engine.setup import Setup, build_setup

CORES = 2
COLUMNS, SIDE, CLASSES = 64, 16, 10
HIDDEN = ("32", "256", "512", "256-256", "512-256", "512-512")  # 2,410 to 301,066 weights
REPEATS = 11
SHOWN = 1.25  # the least ratio that repeats of a measurement do not show by chance


@dataclass(frozen=True)
class Case:
    """One model, and how the rule decides."""

    model: str
    setup: Setup

    @property
    def weights(self) -> int:
        net = self.setup.pool.task().model.net
        return sum(p.numel() for p in net.parameters())


def cases(clients: int, rows: int) -> list[Case]:
    """The linear networks, smallest first, and a convolutional one that is smaller than the limit."""
    linear = [_case(f"mlp:hidden={hidden}", (COLUMNS,), clients, rows) for hidden in HIDDEN]
    return [*linear, _case("small_cnn", (1, SIDE, SIDE), clients, rows)]


def _case(model: str, shape: tuple[int, ...], clients: int, rows: int) -> Case:
    rng, total = np.random.default_rng(0), clients * rows * 10 // 8
    image = len(shape) == 3
    x = rng.integers(256, size=(total, *shape)).astype(np.uint8 if image else np.float32)
    y = rng.permutation(np.arange(total) % CLASSES)
    data = Dataset("synthetic", "image" if image else "table", x, y, x[:0], y[:0], tuple("abcdefghij"))
    config = Config(models=(model,), clients=clients, partition="iid", epochs=1, batch_size=32)
    return Case(model, build_setup(config, data))


def speedup(case: Case, repeats: int) -> float:
    """Time of a round in worker processes, over that of a round by vmap."""
    pool = case.setup.pool
    processes = ProcessBackend(pool, MemoryStore(), CORES)
    try:
        rounds = [_round(case.setup, backend) for backend in (processes, VmapBackend(pool, MemoryStore()))]
        for round_ in rounds:
            round_()
        return median(_seconds(rounds[0]) / _seconds(rounds[1]) for _ in range(repeats))
    finally:
        processes.close()


def _round(setup: Setup, backend: LoopBackend) -> Callable[[], Any]:
    task = setup.pool.task()
    server = setup.method.init_server(task, key(0))
    return lambda: run_round(setup.method, task, backend, server, t=0, seed=0, cohort=task.clients)


def _seconds(f: Callable[[], Any]) -> float:
    started = perf_counter()
    f()
    return perf_counter() - started


def figures(quick: bool = False) -> dict[str, float]:
    torch.set_num_threads(1)
    clients, rows, repeats = (2, 8, 1) if quick else (20, 64, REPEATS)
    found, right = {}, []
    for case in cases(clients, rows):
        faster = speedup(case, repeats)
        found[f"auto.vmap_speedup.{case.model}"] = faster
        right.append(faster > 1 / SHOWN if case.setup.config.backend == "vmap" else faster < SHOWN)
        print(
            f"{case.model:20} {case.weights:>9,} weights  {faster:6.2f}  {case.setup.config.backend}", file=sys.stderr
        )
    return found | {"auto.agrees": sum(right) / len(right)}


if __name__ == "__main__":
    print(figures("--quick" in sys.argv))
