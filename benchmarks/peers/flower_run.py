"""Flower: message API and FedAvg, simulated by Ray on one core. Driver and Ray's processes count."""

import json
import logging
import os
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from flower_client import client_app, work
from flwr import __version__
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_net import network

logging.disable()
TICKS = os.sysconf("SC_CLK_TCK")
result: dict = {}


def family() -> dict[int, float]:
    """Return the processor seconds of this process and of all its descendants."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(words[1])
        seconds[int(stat.parent.name)] = sum(map(int, words[11:13])) / TICKS
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {pid: seconds[pid] for pid in own if pid in seconds}


class Watch(threading.Thread):
    """Keeps the highest time seen of each process, also of those that end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first, self.seen, self.on = family(), {}, True

    def run(self) -> None:
        while self.on:
            self.seen |= family()
            sleep(0.5)

    def total(self) -> float:
        self.on = False
        self.seen |= family()
        return sum(now - self.first.get(pid, 0.0) for pid, now in self.seen.items())


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    first = ArrayRecord(network(work).state_dict())
    strategy = FedAvg(
        fraction_train=work.sampled / work.clients, fraction_evaluate=0.0, min_train_nodes=1,
        min_available_nodes=work.clients, weighted_by_key="num-examples",
    )  # fmt: skip
    found = strategy.start(grid=grid, initial_arrays=first, num_rounds=work.rounds)
    result["weights"] = [v.numpy() for v in found.arrays.to_torch_state_dict().values()]


if __name__ == "__main__":
    started, watch = perf_counter(), Watch()
    watch.start()
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    spent = {"cpu": watch.total(), "wall": perf_counter() - started}
    np.savez(sys.argv[2], *result["weights"])
    print(json.dumps(spent | {"rss_mb": 0.0, "version": __version__}))
