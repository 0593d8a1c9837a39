"""What a round costs between sites: ``python -m benchmarks.sites``; needs the extra ``flower`` and an idle machine.

A federation as users have it, with gate, TLS and keys, all of it on this machine: digits, FedAvg, one epoch, an MLP as
wide as the payload asks for. First measures the processor time and memory of processes while nothing happens. Then, for
each number of sites and each payload, prints the median seconds of a round after the first and where they go. What does
not fit into memory or ``--minutes`` is left out, with a sentence. Everything goes to docs/measured/sites.json, from
which ``make pages`` makes the table of docs/how-to-deploy.md; about twelve minutes. A command that measures some of it
keeps the rest of the file, if that was measured on the same day and machine.

    python -m benchmarks.sites --sites 3 --payloads 0.01 --rounds 3 --idle 0 --out build/sites.json    # small: a minute
    python -m benchmarks.sites --sites ""    # idle processes alone: five minutes
    python -m benchmarks.sites --idle 0      # rounds alone: seven minutes
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from .page import DOCS, conditions

MEASURED = DOCS / "measured" / "sites.json"

PATIENCE = 300.0  # seconds for a process to say that it is ready
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
        self.port = _free_port()
        _atoll("deploy", "init", folder / "fed", "--sites", ",".join(self.names), "--port", self.port)
        _atoll("data", "cut", "digits", folder / "rows", "--clients", sites, "--partition", "iid")

    @contextmanager
    def running(self, end: float) -> Iterator[None]:
        """Start server and sites."""
        with self.server(), _all((self._client(at) for at in range(len(self.names))), end):
            yield

    @contextmanager
    def server(self) -> Iterator[int]:
        with _all([Started(self.folder / "server.log", "Ready", ("deploy", "server", self.folder / "fed"))]) as (pid,):
            yield pid

    def _client(self, at: int, *more: str) -> "Started":
        words = ("deploy", "client", self.site(self.names[at]), "--data", self.folder / "rows" / f"{at}.npz", *more)
        return Started(self.folder / f"{at}.log", "Connected", (*words, "--model", self.model))

    @contextmanager
    def worker(self, at: int) -> Iterator[int]:
        """Start the worker of a site alone."""
        with _all([self._client(at, "--only", "worker")._replace(ready="ready")]) as (pid,):
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
        _atoll("deploy", "run", self.folder / "fed", "fedavg", *options, "--quiet", end=end)
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
        LeftOut: memory or time do not suffice.
    """
    needed = sites * (SITE_GB + COPIES * payload / 1000) + COPIES * payload / 1000
    if needed > _free_gb():
        raise LeftOut(f"it needs about {needed:.0f} GB of memory")
    if time.monotonic() > end:
        raise LeftOut("the time of --minutes is over")
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
    """Raised for a measurement that does not fit into memory or time."""


def measure_idle(sites: int, seconds: float) -> dict[str, Any]:
    """Measure the share of a core that an idle server takes with some sites, and an idle site; and their memory."""
    with TemporaryDirectory(prefix="atoll") as name, ExitStack() as stack:
        federation = Federation(Path(name), sites, 0.01)
        server = stack.enter_context(federation.server())
        worker = stack.enter_context(federation.worker(0))
        connections = stack.enter_context(_all(federation.connection(at) for at in range(sites)))
        time.sleep(WARM)
        groups = {"server": _family(server), "site": [*_family(worker), connections[0]]}
        before = {who: sum(map(_cpu_seconds, pids)) for who, pids in groups.items()}
        time.sleep(seconds)
        spent = {who: sum(map(_cpu_seconds, pids)) - before[who] for who, pids in groups.items()}
        percent = {f"{who}_percent": 100 * spent[who] / seconds for who in groups}
        memory = {f"{who}_mb": sum(map(_memory_mb, pids)) for who, pids in groups.items()}
        found = {"sites": sites, **percent, **memory, "connection_mb": _memory_mb(connections[0])}
    print(f"{sites:3} sites, idle: " + ", ".join(f"{name} {value:.2f}" for name, value in list(found.items())[1:]))
    return found


# -- processes --------------------------------------------------------------------------------------------------------


class Started(NamedTuple):
    """A process that is to be started: where it logs, and the text by which it is ready."""

    log: Path
    ready: str
    words: tuple[object, ...]
    code: str = ""  # of Python, in place of Atoll's command line


@contextmanager
def _all(wanted: Iterable[Started], end: float = float("inf")) -> Iterator[list[int]]:
    """Start processes together; yield their numbers once all are ready, and end them afterwards."""
    started = []
    try:
        for each in wanted:
            program = ["-c", each.code] if each.code else ["-m", "atoll"]
            command = [sys.executable, *program, *map(str, each.words)]
            with each.log.open("wb") as out:
                started.append((each, subprocess.Popen(command, stdout=out, stderr=out)))
        for each, process in started:
            _wait_for(each, process, min(end, time.monotonic() + PATIENCE))
        yield [process.pid for _, process in started]
    finally:
        for _, process in started:
            process.terminate()
        for _, process in started:
            process.wait()


def _wait_for(each: Started, process: "subprocess.Popen[bytes]", end: float) -> None:
    while each.ready not in each.log.read_text():
        if process.poll() is not None:
            raise RuntimeError(f"{each.words[:2]} ended: {each.log.read_text()}")
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(str(each.words[:2]), PATIENCE)
        time.sleep(0.2)


def _atoll(*words: object, end: float | None = None) -> None:
    left = None if end is None else max(1.0, end - time.monotonic())
    command = [sys.executable, "-m", "atoll", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=left)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free_gb() -> float:
    return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 2**20


def _family(process: int) -> list[int]:
    """Return a process and all that it has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(pid for child in children for pid in _family(int(child)))]


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(process: int) -> float:
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sites")
    parser.add_argument("--sites", default="3,10,30", help="numbers of sites; empty for none")
    parser.add_argument("--payloads", default="0.01,1,100", help="megabytes that each site gets and sends")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=11.0, help="no measurement of rounds goes on after them")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds that idle processes are measured; 0: not")
    parser.add_argument("--idle-sites", default="3,30", help="numbers of idle sites")
    parser.add_argument("--out", type=Path, default=MEASURED)
    given = parser.parse_args(arguments)
    end = time.monotonic() + 60 * given.minutes
    pairs = sorted(product(_numbers(given.sites), map(float, given.payloads.split(","))), key=_size)
    idle_sites = _numbers(given.idle_sites) if given.idle else []
    found = _begun(given.out, pairs, idle_sites)
    print(f"load average when it began: {os.getloadavg()[0]:.1f}; processors: {os.cpu_count()}")
    for sites in idle_sites:
        found["idle"].append(measure_idle(sites, given.idle))
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    for pair in pairs:
        found["rounds"].append(attempt(*pair, given.rounds, end))
        found["rounds"].sort(key=lambda entry: (entry["sites"], entry["payload_mb"]))
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Wrote {given.out}. 'make pages' puts it into docs/how-to-deploy.md.")


def _begun(out: Path, pairs: Sequence[tuple[int, float]], idle_sites: Sequence[int]) -> dict[str, Any]:
    """Return what a file has of measurements under the present conditions, without those that are taken anew.

    The load average is that before the rounds, which other programs slow down; idle processes are measured by their own
    processor time.

    Args:
        out: the file.
        pairs: numbers of sites and payloads that are measured anew.
        idle_sites: numbers of idle sites that are measured anew.
    """
    now = conditions()
    known = json.loads(out.read_text()) if out.exists() else {}
    if {name: known.get(name) for name in now} != now:
        known = {"load": 0.0, "idle": [], "rounds": []}
    load = max(known["load"], round(os.getloadavg()[0], 1) if pairs else 0.0)
    idle = [entry for entry in known["idle"] if entry["sites"] not in idle_sites]
    rounds = [entry for entry in known["rounds"] if (entry["sites"], entry["payload_mb"]) not in pairs]
    return now | {"load": load, "idle": idle, "rounds": rounds}


def _size(pair: tuple[int, float]) -> float:
    """Return what a measurement takes, roughly: the longest ones come last."""
    sites, payload = pair
    return sites * (1 + payload)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    main()
