"""What registered clients cost that are not sampled: memory and seconds per round, as their number grows.

Every client has a personal model of its own, kept on disk. Each number of clients runs in a process of its own, from
assembly to report. Memory per idle client is how much more is in use after the last round than with the first number,
for each client more; its rows are part of that. Memory in use, not the peak: what the allocator keeps of the sampled
clients' models differs from run to run by more than all idle clients take. Seconds are the processor's: waiting for
the disk or for other processes is left out. Exit status 1 says that a run took more than 1.5 GB at its peak, or that an
idle client took more than 10 kB with the last number; before it, some MB of chance count for much.
"""

import argparse
import ctypes
import gc
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch

from atoll.api import run
from atoll.data.dataset import Dataset
from atoll.ledger import Line
from atoll.train import trainable

COLUMNS, CLASSES = 16, 4
MOST, MOST_IDLE = 1.5e9, 10e3  # bytes


@dataclass(frozen=True)
class Measured:
    clients: int
    weights: int  # of one personal model
    peak: int  # bytes
    used: int  # bytes after the last round
    first: float  # seconds until the first round is over: data, models, the first examination of everybody
    later: float  # seconds of a later round, on average
    whole: float  # seconds until the report is written
    digest: str


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    if options.alone:
        print(json.dumps(asdict(measure(options))))
        return 0
    runs = [_apart(options, clients) for clients in options.clients]
    print(f"{options.method}, {runs[0].weights:,} weights per client, {options.sampled} sampled, cache {options.cache}")
    print("clients  peak MB  B/idle client  s first round  s later round  s whole run  digest")
    idle = [(r.used - runs[0].used) / max(1, r.clients - runs[0].clients) for r in runs]
    for r, each in zip(runs, idle, strict=True):
        times = f"{r.first:13.2f}  {r.later:13.2f}  {r.whole:11.1f}"
        print(f"{r.clients:7}  {r.peak / 1e6:7.0f}  {each:13.0f}  {times}  {r.digest[:12]}")
    return int(max(r.peak for r in runs) > MOST or idle[-1] > MOST_IDLE)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--sampled", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=10, help="of each client")
    parser.add_argument("--hidden", default="700-700", help="widths of the layers")
    parser.add_argument("--method", default="ditto")
    parser.add_argument("--cache", type=int, default=32)
    parser.add_argument("--eval-every", type=int, default=1)
    parser.add_argument("--folder", help="where runs are put while they last")
    parser.add_argument("--alone", action="store_true", help="one number of clients in this process, told as JSON")
    return parser.parse_args(words)


def _apart(options: argparse.Namespace, clients: int) -> Measured:
    """The same for one number of clients in a new process: a peak never falls."""
    given = vars(options) | {"clients": clients, "alone": True}
    words = [word for name, value in given.items() for word in _words(name, value)]
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _words(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [] if value is None else [option] if value is True else [option, str(value)]


def measure(options: argparse.Namespace) -> Measured:
    """One run, here and now."""
    torch.set_num_threads(1)
    (clients,), started, ends, used = options.clients, process_time(), list[float](), 0

    def watch(t: int, line: Line | None) -> None:
        nonlocal used
        ends.append(process_time() - started)
        if t == options.rounds:
            used = _in_use()

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = run(
            options.method,
            table(clients * options.rows),
            f"mlp:hidden={options.hidden}",
            out=Path(folder) / "run",
            data_dir=folder,
            clients=clients,
            partition="iid",
            rate=min(1.0, options.sampled / clients),
            rounds=options.rounds,
            epochs=1,
            eval_every=options.eval_every,
            store="disk",
            cache=options.cache,
            backend="loop",
            watch=watch,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # it counts in kB
    weights, later = trainable(result.fleet.task().model.init()), (ends[-1] - ends[0]) / max(1, len(ends) - 1)
    return Measured(clients, weights, peak, used, ends[0], later, process_time() - started, result.summary["digest"])


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


if __name__ == "__main__":
    sys.exit(main())
