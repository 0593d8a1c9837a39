"""Carry out the server's part of runs: start the server app for Atoll's own description of a run, and for no other.

``python -m atoll.deploy.server.executor STATE_DIR --server ADDRESS`` asks the SuperLink for tasks. An app from
elsewhere has another hash and is reported as failed without being unpacked. The token of a task passes by the standard
input, because command lines can be read by all accounts of a machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..flower_adapter.tasks import Tasks, app_hash
from ..transport.flower import write_app

PAUSE = 0.3  # seconds between two requests for tasks, while a job is new
IDLE_PAUSE = 30.0  # without a new job file
NEW = 60.0  # seconds for which a job is new
MOST_PAUSE = 5.0  # after requests that failed
JOBS = "ATOLL_JOBS"  # variable with the folder of job files, for the server app


def carry_out(tasks: Tasks, own: str, jobs: Path) -> None:
    """Carry out tasks until a signal arrives.

    Args:
        tasks: tasks of the SuperLink.
        own: hash of the only app that is started.
        jobs: folder of job files.
    """
    environment = dict(os.environ) | {JOBS: str(jobs)}
    started: list[subprocess.Popen[bytes]] = []
    failures = 0
    while True:
        try:
            if task := tasks.next():
                started.extend(_start(tasks, *task, own, environment))
            failures = 0
        except Exception as reason:  # The SuperLink is starting or has ended; its restart ends this process too.
            _log(f"no answer to a request for tasks: {reason!r}")
            failures += 1
        started = [process for process in started if process.poll() is None]
        wait(jobs, min(MOST_PAUSE, PAUSE * 2**failures))


def wait(jobs: Path, pause: float) -> None:
    """Wait for the next request: ``pause`` seconds while a job is new, otherwise until there is one, but not for long.

    A job file is written just before its run starts, so that an idle server need not ask for tasks all the time.
    """
    end = time.monotonic() + IDLE_PAUSE
    time.sleep(pause)
    while time.monotonic() < end and not _has_new_job(jobs):
        time.sleep(PAUSE)


def _has_new_job(jobs: Path) -> bool:
    try:
        return abs(time.time() - jobs.stat().st_mtime) < NEW
    except FileNotFoundError:
        return False


def _start(
    tasks: Tasks, found: str, token: str, own: str, environment: dict[str, str]
) -> "list[subprocess.Popen[bytes]]":
    """Start the server app of a task; report the task as failed if it names another app."""
    if found != own:
        _log(f"refused a run of the app {found}: the server starts {own} only")
        tasks.fail(token, "The server starts no app but its own.")
        return []
    command = [sys.executable, "-m", "atoll.deploy.server.app_process", *tasks.app_arguments()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(token.encode() + b"\n")
    return [process]


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the executor with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m atoll.deploy.server.executor")
    parser.add_argument("state", type=Path, help="folder with executor.secret and the jobs")
    parser.add_argument("--server", required=True, help="address of the SuperLink")
    parser.add_argument("--ca", type=Path, help="certificate of the federation's authority; none without TLS")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tasks = Tasks(given.server, given.ca, (given.state / "executor.secret").read_bytes())
    carry_out(tasks, app_hash(write_app(given.state / "app")), given.state / "jobs")


if __name__ == "__main__":
    main()
