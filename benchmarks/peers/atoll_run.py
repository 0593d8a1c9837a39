"""Atoll, as a user would run the work; ``python -m benchmarks.peers.atoll_run NAME OUT.npz [DATA_DIR]``."""

import json
import resource
import sys
from time import perf_counter

import numpy as np
import torch

from atoll import __version__
from atoll.engine.build import run_experiment

from .shared import cpu
from .works import build


def main() -> None:
    torch.set_num_threads(1)
    setup = build(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None)
    started, cpu_started = perf_counter(), cpu()
    result = run_experiment(setup)
    spent = {"cpu": cpu() - cpu_started, "wall": perf_counter() - started}
    np.savez(sys.argv[2], *[v.numpy() for v in result.server.params.values()])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(spent | {"rss_mb": peak, "version": __version__}))


if __name__ == "__main__":
    main()
