"""What DC-PFL and SCD cost beside FedAvg as features, classes and weights grow, and the memory that they take.

Five clients with 800 training rows, batches of 32, one epoch of each training, the loop backend. ``cost.dcpfl_500x100``
is the time of a round of DC-PFL over that of FedAvg with 500 features and 100 classes, ``peak_mb.dcpfl_500x100`` the
most memory of its process; the other figures of DC-PFL are for fewer features or classes. ``cost.scd_1e6`` is that of
SCD with a million weights, at equal steps of the client's model. ``peak_mb.scd_resnet18`` is the memory of three rounds
of SCD with two clients and a ResNet-18. Processor seconds, medians of rounds after the first.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch

from atoll.config import Config
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.setup import build_setup

from .works import images

COLUMNS, ROWS = 64, 1000


@dataclass(frozen=True)
class Trial:
    """A run to measure."""

    method: str
    model: str
    classes: int = 10
    rounds: int = 5
    rows: int = ROWS  # of each client, test rows included
    clients: int = 5


@dataclass(frozen=True)
class Measured:
    seconds: float  # of a round
    peak: int  # bytes


SIZES = {
    "dcpfl_64x10": ("dcpfl", "mlp:hidden=200-64", 10),
    "dcpfl_500x10": ("dcpfl", "mlp:hidden=200-500", 10),
    "dcpfl_64x100": ("dcpfl", "mlp:hidden=200-64", 100),
    "dcpfl_500x100": ("dcpfl", "mlp:hidden=200-500", 100),
    "scd_1e5": ("scd", "mlp:hidden=400-180", 10),
    "scd_1e6": ("scd", "mlp:hidden=4000-180", 10),
}
QUICK = {"dcpfl_8x4": ("dcpfl", "mlp:hidden=8-8", 4)}


def figures(quick: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    run, more = (measure, {"rounds": 3, "rows": 40}) if quick else (apart, {})
    for name, (method, model, classes) in (QUICK if quick else SIZES).items():
        own, plain = (run(Trial(each, model, classes, **more)) for each in (method, "fedavg"))
        found |= {f"cost.{name}": own.seconds / plain.seconds, f"peak_mb.{name}": own.peak / 1e6}
    if quick:
        return found
    return found | {"peak_mb.scd_resnet18": run(Trial("scd", "resnet18", rounds=3, rows=80, clients=2)).peak / 1e6}


def apart(trial: Trial) -> Measured:
    """A trial in a new process: a peak of memory never falls."""
    words = [sys.executable, "-m", "benchmarks.method_cost", json.dumps(asdict(trial))]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def measure(trial: Trial) -> Measured:
    """A trial here and now."""
    torch.set_num_threads(1)
    personal = {"personal_optim.epochs": 1} if trial.method == "scd" else {}
    config = Config(
        method=trial.method, clients=trial.clients, partition="iid", models=(trial.model,), epochs=1,
        batch_size=32, lr=0.05, rounds=trial.rounds, eval_every=trial.rounds, backend="loop", settings=personal,
    )  # fmt: skip
    ends = [process_time()]
    data = _table(trial) if trial.model.startswith("mlp") else images((3, 32, 32), trial.clients * trial.rows)
    run_experiment(build_setup(config, data), None, lambda t, line: ends.append(process_time()))
    return Measured(median(np.diff(ends)[1:-1].tolist()), _peak())


def _table(trial: Trial) -> Dataset:
    """Rows around one centre for each class."""
    rng, rows = np.random.default_rng(0), trial.clients * trial.rows
    y = rng.permutation(np.arange(rows) % trial.classes)
    x = (rng.normal(size=(trial.classes, COLUMNS))[y] + rng.normal(size=(rows, COLUMNS))).astype(np.float32)
    return Dataset("centres", "table", x, y, x[:0], y[:0], tuple(map(str, range(trial.classes))))


def _peak() -> int:
    """Return the most bytes of memory that this process had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main(words: Sequence[str]) -> None:
    print(json.dumps(asdict(measure(Trial(**json.loads(words[0]))))))


if __name__ == "__main__":
    main(sys.argv[1:])
