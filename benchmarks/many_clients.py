"""What registered clients cost in a round, and what the rounds between two evaluations cost.

FedAvg by vmap with 10 clients in a round, an MLP 64-32-10 on digits that are drawn with replacement and disturbed, 23
rows a client (W3). ``growth.registered_clients_N`` is the time of a round with N clients over that with 100, evaluation
every 20 rounds; ``growth.eval_window`` that of a round of 1,000 with a single evaluation at the end over that with one
every 20 rounds, for 10,000 clients. A time is the median of the rounds without evaluation: processor seconds, in turns,
each in a new process. ``evaluation.ms_per_1000_clients`` is what an evaluated round takes beyond that at the largest N,
``files.ms_per_round_N`` what a round takes longer in a run that writes a directory: the mean of 1,000 rounds of all
kinds and of the end of the run, with evaluation every 20, without the first 20. ``files.ms_per_round_N_every_5`` is the
same with a checkpoint every 5 rounds, where by default they are at least a second apart.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch
from sklearn.datasets import load_digits

from atoll.config import Config
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.setup import build_setup
from atoll.storage.metrics import RoundMetrics
from atoll.storage.run_dir import RunDir

CLIENTS = (100, 1_000, 10_000, 100_000)
ROWS, SAMPLED, NOISE = 23, 10, 24
BLOCK = 2**16  # rows that are drawn at a time


@dataclass(frozen=True)
class Trial:
    """A run to measure."""

    clients: int
    rounds: int = 100
    eval_every: int = 20
    files: bool = False  # whether the run writes a directory
    checkpoint_every: int | None = None


@dataclass(frozen=True)
class Measured:
    plain: float  # median seconds of the rounds without evaluation, without the first
    evaluated: float  # median seconds of the evaluated rounds after the first of these
    mean: float  # mean seconds of the rounds after the first evaluation, with a share of the end of the run


def figures(quick: bool) -> dict[str, float]:
    numbers: tuple[int, ...] = (20, 40) if quick else CLIENTS
    rounds, turns = (8, 1) if quick else (100, 3)
    every = 2 if quick else 20
    trials = {f"growth.registered_clients_{n}": Trial(n, rounds, every) for n in numbers}
    window = 2 * rounds if quick else 1_000
    trials["growth.eval_window"] = Trial(numbers[-2], window, window)
    for n in (written := numbers[-1:] if quick else numbers[1:3]):
        name = f"files.ms_per_round_{n}"
        trials[f"{name}_none"] = Trial(n, window, every)
        trials[name] = Trial(n, window, every, files=True)
        trials[f"{name}_every_5"] = Trial(n, window, every, files=True, checkpoint_every=5)
    run = measure if quick else apart
    found = [{name: run(trial) for name, trial in trials.items()} for _ in range(turns)]

    def ratio(name: str, over: str) -> float:
        return median(turn[name].plain / turn[over].plain for turn in found)

    def files(n: int, more: str = "") -> float:
        name, plain = f"files.ms_per_round_{n}{more}", f"files.ms_per_round_{n}_none"
        return 1e3 * median(max(turn[name].mean - turn[plain].mean, 1e-9) for turn in found)

    first, last = (f"growth.registered_clients_{n}" for n in (numbers[0], numbers[-1]))
    same = f"growth.registered_clients_{numbers[-2]}"
    beyond = median(max(turn[last].evaluated - turn[last].plain, 1e-9) for turn in found)
    return {
        **{f"growth.registered_clients_{n}": ratio(f"growth.registered_clients_{n}", first) for n in numbers[1:]},
        "growth.eval_window": ratio("growth.eval_window", same),
        **{f"files.ms_per_round_{n}{more}": files(n, more) for n in written for more in ("", "_every_5")},
        "evaluation.ms_per_1000_clients": 1e6 * beyond / numbers[-1],
    }


def apart(trial: Trial) -> Measured:
    """A trial in a new process, so that none profits from the memory of another."""
    words = [sys.executable, "-m", "benchmarks.many_clients", json.dumps(asdict(trial))]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def measure(trial: Trial) -> Measured:
    """A trial here and now."""
    torch.set_num_threads(1)
    setup = build_setup(
        Config(
            clients=trial.clients, rate=SAMPLED / trial.clients, partition="iid", models=("mlp:hidden=32",),
            backend="vmap", epochs=1, batch_size=10, lr=0.05, rounds=trial.rounds, eval_every=trial.eval_every,
            checkpoint_every=trial.checkpoint_every,
            settings={"optim.momentum": 0.0, "optim.weight_decay": 0.0, "optim.clip": 0.0},
        ),
        disturbed_digits(trial.clients),
    )  # fmt: skip
    plain, evaluated, last = list[float](), list[float](), process_time()

    def watch(t: int, line: RoundMetrics | None) -> None:
        nonlocal last
        now = process_time()
        (plain if line is None else evaluated).append(now - last)
        last = now

    with ExitStack() as stack:
        run_dir = None
        if trial.files:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            run_dir = stack.enter_context(RunDir(Path(folder) / "run"))
        run_experiment(setup, run_dir, watch)
    end = process_time() - last
    later = sum(plain[trial.eval_every - 1 :]) + sum(evaluated[1:]) + end
    return Measured(
        median(plain[1:]), median(evaluated[1:] or evaluated), later / max(trial.rounds - trial.eval_every, 1)
    )


def disturbed_digits(clients: int) -> Dataset:
    """Digits drawn with replacement, each pixel moved by up to 24 of 255."""
    rng, digits = np.random.default_rng(0), load_digits()
    chosen = rng.integers(len(digits.target), size=ROWS * clients)
    pixels = (digits.images * (255 / 16)).astype(np.int16)
    x = np.empty((len(chosen), 1, 8, 8), np.uint8)
    for start in range(0, len(chosen), BLOCK):
        part = pixels[chosen[start : start + BLOCK]]
        moved = part + rng.integers(-NOISE, NOISE + 1, size=part.shape, dtype=np.int16)
        x[start : start + BLOCK, 0] = moved.clip(0, 255)
    y = digits.target[chosen]
    return Dataset("disturbed digits", "image", x, y, x[:0], y[:0], tuple(map(str, range(10))))


def main(words: Sequence[str]) -> None:
    print(json.dumps(asdict(measure(Trial(**json.loads(words[0]))))))


if __name__ == "__main__":
    main(sys.argv[1:])
