"""What contenders share: the tensors of a work, the clock, the result. Needs numpy alone, as fedjax has no torch.

A contender is a script in this folder. ``python NAME.py WORK.npz OUT.npz`` runs all rounds of a work, writes the last
global weights to OUT.npz and prints one line of JSON.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np


def load() -> SimpleNamespace:
    """Read the work that the command line names: x, y, sizes and starts of clients, first weights, facts."""
    stored = np.load(sys.argv[1])
    facts = json.loads(str(stored["facts"]))
    count = sum(name.startswith("weight_") for name in stored.files)
    sizes = stored["sizes"]
    return SimpleNamespace(
        x=stored["x"],
        y=stored["y"],
        sizes=sizes,
        starts=np.concatenate([[0], np.cumsum(sizes)]),
        weights=[stored[f"weight_{at}"] for at in range(count)],
        **facts,
    )


def rows_of(work: SimpleNamespace, client: int) -> tuple[Any, Any]:
    """Return inputs and labels of a client."""
    own = slice(work.starts[client], work.starts[client + 1])
    return work.x[own], work.y[own]


def cpu() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def measure(rounds: Callable[[], Iterable[np.ndarray]], version: str) -> None:
    """Run all rounds, and print what they took.

    Args:
        rounds: runs all rounds, and returns the tensors of the last global model in the order of the layers.
        version: version of the framework.
    """
    started, cpu_started = perf_counter(), cpu()
    weights = rounds()
    spent = {"cpu": cpu() - cpu_started, "wall": perf_counter() - started}
    np.savez(sys.argv[2], *[np.asarray(w) for w in weights])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(spent | {"rss_mb": peak, "version": version}))
