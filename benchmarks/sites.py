"""What a round costs between sites: ``python -m benchmarks.sites``; needs the extra ``flower`` and an idle machine.

A federation as users have it, with gate, TLS and keys, all of it on this machine: digits, FedAvg, one epoch, an MLP as
wide as the payload asks for. For each number of sites and each payload, prints the median seconds of a round after the
first and where they go. Then prints the processor time of processes while nothing happens. A table goes to
build/sites.json, which is written again after each measurement; one that fails is noted there, and the others go on.

    python -m benchmarks.sites --sites 3 --payloads 0.01 --rounds 4 --idle 0    # small: a minute or two
    python -m benchmarks.sites --sites "" --idle 60    # idle processes alone, also on a busy machine: nine minutes
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE = 300.0  # seconds for a process to say that it is ready
BYTES_PER_UNIT = 300  # an MLP on 64 pixels has 75 weights of 4 bytes for each unit of its layer
WARM = 420.0  # seconds until a site asks for work as seldom as it ever does
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
        _atoll("deploy", "init", folder / "fed", "--sites", ",".join(self.names), "--port", _free_port())
        _atoll("data", "cut", "digits", folder / "rows", "--clients", sites, "--partition", "iid")

    @contextmanager
    def running(self) -> Iterator[list[int]]:
        """Start server and sites; yield the process of the server and those of the sites."""
        with ExitStack() as stack:
            server = _standing(self.folder / "server.log", "Ready", "deploy", "server", self.folder / "fed")
            started = [stack.enter_context(server)]
            for at, name in enumerate(self.names):
                words = ("deploy", "client", self.site(name), "--data", self.folder / "rows" / f"{at}.npz")
                log = self.folder / f"{name}.log"
                started.append(stack.enter_context(_standing(log, "Connected", *words, "--model", self.model)))
            yield started

    def site(self, name: str) -> Path:
        return self.folder / "fed" / "sites" / name

    def round_seconds(self, rounds: int) -> list[float]:
        """Run FedAvg; return the seconds of each round after the first, which also loads what is needed."""
        out = self.folder / "run"
        options = ("--rounds", rounds, "--epochs", 1, "--eval-every", 1, "--out", out, "--round-timeout", 3600)
        _atoll("deploy", "run", self.folder / "fed", "fedavg", *options, "--quiet")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [b["seconds"] - a["seconds"] for a, b in pairwise(lines)]

    def site_seconds(self, rounds: int) -> dict[str, float]:
        """Return the median seconds of a site's steps, of the messages that are exchanges."""
        taken = []
        for name in self.names:
            found = _LINE.findall((self.site(name) / "logs" / "connection.log").read_text())
            taken += found[3:][: rounds - 1]  # after hello, begin and the first round
        return {step: median(float(times[at]) for times in taken) for at, step in enumerate(STEPS)}


def measure(sites: int, payload: float, rounds: int) -> dict[str, Any] | None:
    """Measure rounds with some sites and a payload of some megabytes; None if the memory does not suffice."""
    needed = sites * (SITE_GB + COPIES * payload / 1000) + COPIES * payload / 1000
    if needed > _free_gb():
        print(f"{sites:3} sites, {payload:6g} MB: left out, it needs about {needed:.0f} GB of memory")
        return None
    with TemporaryDirectory(prefix="atoll") as name:
        federation = Federation(Path(name), sites, payload)
        with federation.running():
            taken = federation.round_seconds(rounds)
        steps = federation.site_seconds(rounds)
    total = median(taken)
    steps["server and waiting"] = max(0.0, total - sum(steps.values()))
    shares = ", ".join(f"{step} {100 * seconds / total:.0f} %" for step, seconds in steps.items())
    print(f"{sites:3} sites, {payload:6g} MB: {total:7.2f} s a round ({min(taken):.2f} to {max(taken):.2f}); {shares}")
    return {"sites": sites, "payload_mb": payload, "seconds": taken, "steps": steps}


def attempt(sites: int, payload: float, rounds: int) -> list[dict[str, Any]]:
    """Return the measurement of some sites and a payload, or why it failed; nothing if it was left out."""
    try:
        found = measure(sites, payload, rounds)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as reason:
        print(f"{sites:3} sites, {payload:6g} MB: failed: {reason}")
        return [{"sites": sites, "payload_mb": payload, "failed": str(reason)}]
    return [] if found is None else [found]


def write(found: dict[str, Any]) -> None:
    """Write what was measured so far to build/sites.json."""
    out = Path("build") / "sites.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


def measure_idle(seconds: float) -> dict[str, dict[str, float]]:
    """Measure the share of a core and the memory of the processes of an idle server and an idle site."""
    with TemporaryDirectory(prefix="atoll") as name:
        federation = Federation(Path(name), 3, 0.01)
        with federation.running() as (server, site, *_):
            time.sleep(WARM)
            groups = {"server": _family(server), "site": _family(site)}
            connection = [pid for pid in groups["site"] if b"site.connection" in _command(pid)]
            before = {who: sum(map(_cpu_seconds, pids)) for who, pids in groups.items()}
            time.sleep(seconds)
            found = {
                who: {
                    "core_percent": 100 * (sum(map(_cpu_seconds, pids)) - before[who]) / seconds,
                    "memory_mb": sum(map(_memory_mb, pids)),
                }
                for who, pids in groups.items()
            }
            found["connection of a site"] = {"memory_mb": sum(map(_memory_mb, connection))}
    for who, values in found.items():
        print(f"idle {who}: " + ", ".join(f"{name} {value:.2f}" for name, value in values.items()))
    return found


# -- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def _standing(log: Path, ready: str, *words: object) -> Iterator[int]:
    """Start a server or a site; yield its process once it is ready, and end it afterwards."""
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "atoll", *map(str, words)], stdout=out, stderr=out)
    try:
        end = time.monotonic() + PATIENCE
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{words[:2]} is not ready: {log.read_text()}")
            time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _atoll(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "atoll", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


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


def _command(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(process: int) -> float:
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sites")
    parser.add_argument("--sites", default="3,10,30", help="numbers of sites; empty for none")
    parser.add_argument("--payloads", default="0.01,1,100", help="megabytes that each site gets and sends")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--idle", type=float, default=60.0, help="seconds of the measurement of idle processes; 0: none"
    )
    given = parser.parse_args(arguments)
    print(f"load when it began: {os.getloadavg()[0]:.1f}; processors: {os.cpu_count()}")
    numbers = [int(number) for number in given.sites.split(",") if number]
    payloads = [float(p) for p in given.payloads.split(",")]
    found: dict[str, Any] = {"rounds": [], "idle": {}}
    for sites, payload in product(numbers, payloads):
        found["rounds"] += attempt(sites, payload, given.rounds)
        write(found)
    if given.idle:
        found["idle"] = measure_idle(given.idle)
        write(found)


if __name__ == "__main__":
    main()
