"""The rule behind ``--backend auto``: is vmap the faster side for the models it is taken for, and only for those?

Rounds of FedAvg with linear networks on both sides of the limit, and one small convolutional network: batched by vmap
in one process and one thread, and in worker processes, one for each of two cores. A figure is the median ratio of the
wall times of rounds that stood side by side; above 1, vmap is faster. ``auto.agrees`` is the share of the models for
which the rule does not take the slower side; a difference of less than a quarter is none.

Then whole runs, with the start of worker processes and one evaluation at the end: ``auto.beside_best.WORK`` is the wall
time with the backend that the rule takes over that with the fastest of loop, vmap and two processes.
``auto.two_workers.cnn_long`` is the median time of a round with one worker process over that with two, without the
first round and the evaluated one; ``auto.two_workers_whole_run.cnn_long`` the same of the whole run.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from atoll.backends.loop import LoopBackend
from atoll.backends.multiprocess import ProcessBackend
from atoll.backends.vmap import VmapBackend
from atoll.clients.state_store import MemoryStore
from atoll.config import Config
from atoll.core.prng import key
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.round import run_round
from atoll.engine.setup import Setup, build_setup

from .many_clients import disturbed_digits
from .peers.works import W2
from .rounds import build
from .works import W1S, images

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


def works(quick: bool) -> dict[str, tuple[Config, Dataset | None, list[nn.Module]]]:
    """Return five works: 10 clients, 20 clients, 10 of 1,000, and the CNN of W2 for one round and for ten."""
    rounds = (1, 1, 1) if quick else (20, 100, 10)
    common: dict[str, Any] = {"partition": "iid", "epochs": 1, "lr": 0.05}
    digits = {**common, "models": ("mlp:hidden=32",), "batch_size": 10}
    image = {**common, "clients": 10, "batch_size": 32}
    many, rows = (20, 100) if quick else (1000, 6000)
    return {
        "digits": (Config(**digits, clients=10, rounds=rounds[0], eval_every=rounds[0]), None, []),
        "all_of_20": (Config(**digits, clients=20, rounds=rounds[0], eval_every=rounds[0]), None, []),
        "10_of_many": (
            Config(**digits, clients=many, rate=10 / many, rounds=rounds[1], eval_every=rounds[1]),
            disturbed_digits(many),
            [],
        ),
        "cnn_short": (Config(**image, rounds=1, eval_every=1), images(W1S, rows), [build(W2)]),
        "cnn_long": (Config(**image, rounds=rounds[2], eval_every=rounds[2]), images(W1S, rows), [build(W2)]),
    }


def beside_best(quick: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (config, data, nets) in works(quick).items():
        chosen = build_setup(config, data, nets).config.backend
        kinds = {"loop": {}, "vmap": {}, "processes": {"workers": CORES}}
        runs = {kind: replace(config, backend=kind, **more) for kind, more in kinds.items()}
        if name == "cnn_long":
            runs["one worker"] = replace(config, backend="processes", workers=1)
        turns = [{kind: _run(run, data, nets) for kind, run in runs.items()} for _ in range(1 if quick else 3)]
        times = {kind: median(turn[kind].whole for turn in turns) for kind in runs}
        found[f"auto.beside_best.{name}"] = times[chosen] / min(times[kind] for kind in kinds)
        print(f"{name:12} {chosen:10} {' '.join(f'{k} {v:.2f} s' for k, v in times.items())}", file=sys.stderr)
        if "one worker" in times:
            found[f"auto.two_workers.{name}"] = median(t["one worker"].round / t["processes"].round for t in turns)
            found[f"auto.two_workers_whole_run.{name}"] = times["one worker"] / times["processes"]
    return found


class Seconds(NamedTuple):
    whole: float  # of a run
    round: float  # median of the rounds but the first and the last; the first alone if there are no others


def _run(config: Config, data: Dataset | None, nets: list[nn.Module]) -> Seconds:
    setup = build_setup(config, data, nets)
    times = [perf_counter()]
    run_experiment(setup, watch=lambda t, line: times.append(perf_counter()))
    rounds = np.diff(times).tolist()
    return Seconds(perf_counter() - times[0], median(rounds[1:-1] or rounds))


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
    return found | {"auto.agrees": sum(right) / len(right)} | beside_best(quick)


if __name__ == "__main__":
    print(figures("--quick" in sys.argv))
