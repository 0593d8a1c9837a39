"""What a round costs between sites: ``python -m benchmarks.sites``; needs the extra ``flower`` and an idle machine.

A federation as users have it, with gate, TLS and keys, all of it on this machine: digits, FedAvg, one epoch, an MLP as
wide as the payload asks for. First measures the processor time and memory of processes while nothing happens. Then, for
each number of sites and each payload, prints the median seconds of a round after the first and where they go. What does
not fit into memory, or into ``--minutes`` each, is left out, with a sentence.

Every measurement is a cell of docs/measured/sites.json, with its own date and load, written as soon as it is there;
``make pages`` makes the tables of docs/how-to-deploy.md from the file. A command keeps the cells that it does not
measure, if they are of the same machine and versions. So the tables can be made in parts, and ``--missing`` measures
the rest, with what was left out.

    python -m benchmarks.sites --sites 3 --payloads 0.01 --rounds 3 --idle 0 --out build/sites.json    # small: a minute
    python -m benchmarks.sites --sites ""    # idle processes alone: five minutes
    python -m benchmarks.sites --idle 0 --sites 30 --payloads 1    # one cell of the table
    python -m benchmarks.sites --missing     # what the file has not got yet
"""

import argparse
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .page import DOCS, conditions
from .site_processes import Started, cpu_seconds, family, free_gb, free_port, memory_mb, run_all, run_atoll

MEASURED = DOCS / "measured" / "sites.json"

BYTES_PER_UNIT = 300  # an MLP on 64 pixels has 75 weights of 4 bytes for each unit of its layer
WARM = 75.0  # seconds until connections that grow impatient slowly ask as seldom as they ever do
SITE_GB = 0.4  # memory of the processes of a site with a tiny model, without what processes share
COPIES = 10  # of the model, in all processes of a site
STEPS = ("pull", "worker", "push")  # of a site, as its connection logs them
_LINE = re.compile(r"answered: pull ([\d.]+) s, worker ([\d.]+) s, push ([\d.]+) s")


class Federation:
    """A server and sites in a folder."""

    def __init__(self, folder: Path, sites: int, payload: float):
        self.folder = folder
        self.names = [f"s{number}" for number in range(sites)]
        self.model = f"mlp:hidden={max(1, round(payload * 1e6 / BYTES_PER_UNIT))}"
        self.port = free_port()
        run_atoll("deploy", "init", folder / "fed", "--sites", ",".join(self.names), "--port", self.port)
        run_atoll("data", "cut", "digits", folder / "rows", "--clients", sites, "--partition", "iid")

    @contextmanager
    def running(self, end: float) -> Iterator[None]:
        """Start server and sites."""
        with self.server(), run_all((self._client(at) for at in range(len(self.names))), end):
            yield

    @contextmanager
    def server(self) -> Iterator[int]:
        with run_all([Started(self.folder / "server.log", "Ready", ("deploy", "server", self.folder / "fed"))]) as (
            pid,
        ):
            yield pid

    def _client(self, at: int, *more: str) -> "Started":
        words = ("deploy", "client", self.site(self.names[at]), "--data", self.folder / "rows" / f"{at}.npz", *more)
        return Started(self.folder / f"{at}.log", "Connected", (*words, "--model", self.model))

    @contextmanager
    def worker(self, at: int) -> Iterator[int]:
        """Start the worker of a site alone."""
        with run_all([self._client(at, "--only", "worker")._replace(ready="ready")]) as (pid,):
            yield pid

    def connection(self, at: int) -> "Started":
        """Return the connection of a site, which at once asks for work as seldom as it does after an hour."""
        code = "from atoll.deploy.site import connection as c; c.PATIENCE = 1; c.main()"
        words = (self.site(self.names[at]), "--server", f"localhost:{self.port}")
        return Started(self.folder / f"{at}.connection.log", "connected to the server", words, code)

    def site(self, name: str) -> Path:
        return self.folder / "fed" / "sites" / name

    def round_seconds(self, rounds: int, end: float) -> list[float]:
        """Run FedAvg; return the seconds of each round after the first, which also loads what is needed."""
        out = self.folder / "run"
        options = ("--rounds", rounds, "--epochs", 1, "--eval-every", 1, "--out", out, "--round-timeout", 3600)
        run_atoll("deploy", "run", self.folder / "fed", "fedavg", *options, "--quiet", end=end)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [b["seconds"] - a["seconds"] for a, b in pairwise(lines)]

    def site_seconds(self, rounds: int) -> dict[str, float]:
        """Return the median seconds of a site's steps, of the messages that are exchanges."""
        taken = []
        for name in self.names:
            found = _LINE.findall((self.site(name) / "logs" / "connection.log").read_text())
            taken += found[3:][: rounds - 1]  # after hello, begin and the first round
        return {step: median(float(times[at]) for times in taken) for at, step in enumerate(STEPS)}


def measure(sites: int, payload: float, rounds: int, end: float) -> dict[str, Any]:
    """Measure rounds with some sites and a payload of some megabytes.

    Raises:
        LeftOut: memory does not suffice.
        subprocess.TimeoutExpired: time is up.
    """
    needed = sites * (SITE_GB + COPIES * payload / 1000) + COPIES * payload / 1000
    if needed > free_gb():
        raise LeftOut(f"it needs about {needed:.0f} GB of memory")
    with TemporaryDirectory(prefix="atoll") as name:
        federation = Federation(Path(name), sites, payload)
        with federation.running(end):
            taken = federation.round_seconds(rounds, end)
        steps = federation.site_seconds(rounds)
    total = median(taken)
    steps["server and waiting"] = max(0.0, total - sum(steps.values()))
    shares = ", ".join(f"{step} {100 * seconds / total:.0f} %" for step, seconds in steps.items())
    span = f"{min(taken):.2f} to {max(taken):.2f}"
    print(f"{sites:3} sites, {payload:6g} MB: {total:7.2f} s a round ({span}); {shares}", flush=True)
    return {"sites": sites, "payload_mb": payload, "seconds": taken, "steps": steps}


def attempt(sites: int, payload: float, rounds: int, end: float) -> dict[str, Any]:
    """Return the measurement of some sites and a payload, or why there is none; ``end`` is when time is up."""
    try:
        found = measure(sites, payload, rounds, end)
    except (LeftOut, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as reason:
        late = isinstance(reason, subprocess.TimeoutExpired)
        text = "it took longer than --minutes" if late else str(reason).splitlines()[0]
        print(f"{sites:3} sites, {payload:6g} MB: left out: {text}", flush=True)
        return {"sites": sites, "payload_mb": payload, "left_out": text}
    return found


class LeftOut(Exception):
    """Raised for a measurement that does not fit into memory."""


def measure_idle(sites: int, seconds: float) -> dict[str, Any]:
    """Measure the share of a core that an idle server takes with some sites, and an idle site; and their memory."""
    with TemporaryDirectory(prefix="atoll") as name, ExitStack() as stack:
        federation = Federation(Path(name), sites, 0.01)
        server = stack.enter_context(federation.server())
        worker = stack.enter_context(federation.worker(0))
        connections = stack.enter_context(run_all(federation.connection(at) for at in range(sites)))
        time.sleep(WARM)
        groups = {"server": family(server), "site": [*family(worker), connections[0]]}
        before = {who: sum(map(cpu_seconds, pids)) for who, pids in groups.items()}
        time.sleep(seconds)
        spent = {who: sum(map(cpu_seconds, pids)) - before[who] for who, pids in groups.items()}
        percent = {f"{who}_percent": 100 * spent[who] / seconds for who in groups}
        memory = {f"{who}_mb": sum(map(memory_mb, pids)) for who, pids in groups.items()}
        found = {"sites": sites, **percent, **memory, "connection_mb": memory_mb(connections[0])}
    print(f"{sites:3} sites, idle: " + ", ".join(f"{name} {value:.2f}" for name, value in list(found.items())[1:]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sites")
    parser.add_argument("--sites", default="3,10,30", help="numbers of sites; empty for none")
    parser.add_argument("--payloads", default="0.01,1,100", help="megabytes that each site gets and sends")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=30.0, help="for each number of sites and payload")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds that idle processes are measured; 0: not")
    parser.add_argument("--idle-sites", default="3,30", help="numbers of idle sites")
    parser.add_argument("--missing", action="store_true", help="measure only what the file does not have yet")
    parser.add_argument("--out", type=Path, default=MEASURED)
    given = parser.parse_args(arguments)
    wanted = sorted(product(_numbers(given.sites), map(float, given.payloads.split(","))), key=_size)
    idle_sites = _numbers(given.idle_sites) if given.idle else []
    known = _kept(given.out)
    if given.missing:
        measured = [_pair(entry) for entry in known["rounds"] if "seconds" in entry]
        wanted = [pair for pair in wanted if pair not in measured]
        idle_sites = [sites for sites in idle_sites if sites not in map(_sites, known["idle"])]
    load = round(os.getloadavg()[0], 1)
    print(f"load average when it began: {load}; processors: {os.cpu_count()}")
    for sites in idle_sites:
        _store(given.out, "idle", measure_idle(sites, given.idle) | {"date": _today(), "load": load}, _sites)
    for pair in wanted:
        entry = attempt(*pair, given.rounds, time.monotonic() + 60 * given.minutes)
        _store(given.out, "rounds", entry | {"date": _today(), "load": load}, _pair)
    print(f"Wrote {given.out}. 'make pages' puts it into docs/how-to-deploy.md.")


# -- the file of measurements -----------------------------------------------------------------------------------------


def _kept(out: Path) -> dict[str, Any]:
    """Return what a file has of measurements on this machine with these versions, on any day."""
    now = {name: value for name, value in conditions().items() if name != "date"}
    known = json.loads(out.read_text()) if out.exists() else {}
    if {name: known.get(name) for name in now} != now:
        known = {"idle": [], "rounds": []}
    return now | {name: known[name] for name in ("idle", "rounds")}


def _store(out: Path, kind: str, entry: dict[str, Any], place: Callable[[dict[str, Any]], Any]) -> None:
    """Write a measurement into the file, in place of an earlier one of the same ``place``."""
    known = _kept(out)
    others = [other for other in known[kind] if place(other) != place(entry)]
    known[kind] = sorted([*others, entry], key=place)
    out.write_text(json.dumps(known, indent=1) + "\n")


def _sites(entry: dict[str, Any]) -> int:
    return int(entry["sites"])


def _pair(entry: dict[str, Any]) -> tuple[int, float]:
    return entry["sites"], entry["payload_mb"]


def _today() -> str:
    return str(conditions()["date"])


def _size(pair: tuple[int, float]) -> float:
    """Return what a measurement takes, roughly: the longest ones come last."""
    sites, payload = pair
    return sites * (1 + payload)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    main()
