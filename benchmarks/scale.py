"""What registered clients cost that are not sampled: memory and seconds per round, as their number grows.

Every client has a personal model of its own (505,404 weights, Ditto), kept on disk; 100 are sampled in a round, and
every round is evaluated. Each number of clients runs in a process of its own. ``rss_mb`` is the peak of its memory.
``idle_kb_per_client`` is how much more is in use after the last round with the largest number than with the smallest,
for each client more, its rows included; memory in use, not the peak: what the allocator keeps of the sampled clients'
models differs from run to run by more than all idle clients take. ``seconds_per_round`` is the processor time of a
round after the first, over that of the smallest number; ``seconds_first_round`` that of all before, in seconds: data,
models, the first examination of everybody. ``scale.same_digest`` is 1 if runs with room for one state in memory and
with room for all of them end with the same digest.
"""

import ctypes
import gc
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time

import numpy as np
import torch

from atoll.config import Config
from atoll.core.params import trainable
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.setup import build_setup
from atoll.storage.metrics import RoundMetrics
from atoll.storage.run_dir import RunDir

COLUMNS, CLASSES = 16, 4
EVERYBODY = 10**6  # as the room of a cache: for all states there are


@dataclass(frozen=True)
class Trial:
    """A run to measure."""

    clients: int
    sampled: int = 100
    rounds: int = 6
    rows: int = 10  # of each client
    hidden: str = "700-700"
    method: str = "ditto"
    cache: int = 32

    def config(self) -> Config:
        return Config(
            method=self.method, clients=self.clients, rate=min(1.0, self.sampled / self.clients), partition="iid",
            models=(f"mlp:hidden={self.hidden}",), rounds=self.rounds, epochs=1, store="disk", cache=self.cache,
            backend="loop",
        )  # fmt: skip


QUICK = Trial(clients=20, sampled=4, rounds=2, hidden="8")


@dataclass(frozen=True)
class Measured:
    weights: int  # of one personal model
    peak: int  # bytes
    used: int  # bytes after the last round
    first: float  # seconds until the first round is over: data, models, the first examination of everybody
    later: float  # seconds of a later round, on average
    digest: str


def figures(quick: bool) -> dict[str, float]:
    trial, numbers = (QUICK, (20, 40)) if quick else (Trial(100), (100, 1_000, 10_000))
    small, go = replace(trial, clients=numbers[0]), measure if quick else apart
    runs = {n: go(replace(trial, clients=n)) for n in numbers}
    rooms = [go(replace(small, cache=cache)) for cache in (1, EVERYBODY)]
    first, last = runs[numbers[0]], runs[numbers[-1]]
    return {
        **{f"rss_mb.clients_{n}": r.peak / 1e6 for n, r in runs.items()},
        "idle_kb_per_client": (last.used - first.used) / (numbers[-1] - numbers[0]) / 1e3,
        **{f"seconds_per_round.clients_{n}": r.later / first.later for n, r in runs.items()},
        **{f"seconds_first_round.clients_{n}": r.first for n, r in runs.items()},
        "scale.same_digest": float(len({r.digest for r in (first, *rooms)}) == 1),
    }


def apart(trial: Trial) -> Measured:
    """A trial in a new process: a peak never falls."""
    words = [sys.executable, "-m", "benchmarks.scale", json.dumps(asdict(trial))]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def measure(trial: Trial) -> Measured:
    """A trial here and now."""
    torch.set_num_threads(1)
    started, ends, used = process_time(), list[float](), 0

    def watch(t: int, line: RoundMetrics | None) -> None:
        nonlocal used
        ends.append(process_time() - started)
        if t == trial.rounds:
            used = _in_use()

    setup = build_setup(trial.config(), table(trial.clients * trial.rows))
    with tempfile.TemporaryDirectory() as folder, RunDir(Path(folder)) as run_dir:
        result = run_experiment(setup, run_dir, watch)
    later = (ends[-1] - ends[0]) / max(1, len(ends) - 1)
    return Measured(trainable(setup.pool.task().model.init()), _peak(), used, ends[0], later, result.summary["digest"])


def _peak() -> int:
    """The most bytes of memory that this process had; what ``getrusage`` tells is also that of who started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _in_use() -> int:
    """Bytes of memory of this process once the allocator has given back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def table(rows: int) -> Dataset:
    """Rows around one centre for each class."""
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=rows)
    x = (rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(rows, COLUMNS))).astype(np.float32)
    return Dataset("scale", "table", x, y, x[:0], y[:0], tuple("abcd"))


def main(words: Sequence[str]) -> None:
    print(json.dumps(asdict(measure(Trial(**json.loads(words[0]))))))


if __name__ == "__main__":
    main(sys.argv[1:])
