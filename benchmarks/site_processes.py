"""Start the processes of a federation for a benchmark, and read their processor time and memory."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PATIENCE = 300.0  # seconds for a process to say that it is ready


class Started(NamedTuple):
    """A process that is to be started: where it logs, and the text by which it is ready."""

    log: Path
    ready: str
    words: tuple[object, ...]
    code: str = ""  # of Python, in place of Atoll's command line


@contextmanager
def run_all(wanted: Iterable[Started], end: float = float("inf")) -> Iterator[list[int]]:
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


def run_atoll(*words: object, end: float | None = None) -> None:
    left = None if end is None else max(1.0, end - time.monotonic())
    command = [sys.executable, "-m", "atoll", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=left)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_gb() -> float:
    return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 2**20


def family(process: int) -> list[int]:
    """Return a process and all that it has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(pid for child in children for pid in family(int(child)))]


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(process: int) -> float:
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
