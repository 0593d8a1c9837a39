"""What a round costs between sites: ``python -m benchmarks.sites [ROUNDS]``; needs the extra ``flower``.

A federation as users have it, with gate, TLS and keys, all of it on this machine: three sites with digits, FedAvg, one
epoch. Prints the seconds of each round by the clock on the wall, beside those of the same rounds in one process.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

SITES = ("north", "south", "west")
PATIENCE = 120.0  # seconds for a process to say that it is ready


def main(rounds: int = 6) -> None:
    load = os.getloadavg()[0]
    with TemporaryDirectory(prefix="atoll") as name, ExitStack() as stack:
        folder = Path(name)
        _found(folder)
        stack.enter_context(_standing(folder / "server.log", "Ready", "deploy", "server", folder / "fed"))
        for at, site in enumerate(SITES):
            words = ("deploy", "client", folder / "fed" / "sites" / site, "--data", folder / "rows" / f"{at}.npz")
            stack.enter_context(_standing(folder / f"{site}.log", "Connected", *words))
        between = _seconds(folder / "between", "deploy", "run", folder / "fed", "fedavg", rounds=rounds)
        here = _seconds(folder / "here", "run", "fedavg", "--clients", 3, "--backend", "loop", rounds=rounds)
    print(f"load when it began: {load:.1f}; processors: {os.cpu_count()}")
    print(f"between sites: {_listed(between)} s")
    print(f"in one process: {_listed(here)} s")


def _found(folder: Path) -> None:
    """Keys and rows for everybody."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _atoll("deploy", "init", folder / "fed", "--sites", ",".join(SITES), "--port", port)
    _atoll("data", "cut", "digits", folder / "rows", "--clients", 3, "--partition", "iid")


@contextmanager
def _standing(log: Path, ready: str, *words: object) -> Iterator[None]:
    """A server or a site, from when it is ready until it is not needed."""
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "atoll", *map(str, words)], stdout=out, stderr=out)
    try:
        end = time.monotonic() + PATIENCE
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{words[:2]} is not ready: {log.read_text()}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _seconds(out: Path, *words: object, rounds: int) -> list[float]:
    """How long each round took after the first, which also loads what is needed."""
    _atoll(*words, "--rounds", rounds, "--epochs", 1, "--eval-every", 1, "--out", out, "--quiet")
    ends = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [b - a for a, b in pairwise(ends)]


def _atoll(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "atoll", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{s:.2f}" for s in seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
