"""The executor of a server: starts one app alone, keeps tokens off command lines, asks often while a job is new."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atoll.deploy.server import executor

pytest.importorskip("flwr")


class OneTask:
    """Tasks of a SuperLink: one task, and then the end of the test."""

    def __init__(self, app: str):
        self._left: list[tuple[str, str]] = [(app, "the token")]
        self.failed: list[tuple[str, str]] = []

    def next(self) -> tuple[str, str]:
        if not self._left:
            raise SystemExit
        return self._left.pop()

    def fail(self, token: str, details: str) -> None:
        self.failed.append((token, details))

    def app_arguments(self) -> list[str]:
        return ["--insecure"]


class Recorded:
    """A process that is not started: its command line, its environment and what is written to its standard input."""

    started: list["Recorded"]

    def __init__(self, command: list[str], stdin: int, env: dict[str, str]):
        self.command, self.env, self.written = command, env, b""
        self.stdin = self
        self.started.append(self)

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += data

    def poll(self) -> None:
        return None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    Recorded.started = []
    monkeypatch.setattr(executor.subprocess, "Popen", Recorded)
    monkeypatch.setattr(executor, "wait", lambda jobs, pause: None)
    return Recorded.started


def carry_out(tasks: Any) -> None:
    with pytest.raises(SystemExit):
        executor.carry_out(tasks, "our own app", Path("jobs"))


def test_app_with_another_hash_is_reported_as_failed_and_not_started(started: list[Recorded]) -> None:
    tasks = OneTask("a foreign app")

    carry_out(tasks)

    assert started == []
    assert tasks.failed == [("the token", "The server starts no app but its own.")]


def test_token_of_a_task_is_on_the_standard_input_alone(started: list[Recorded]) -> None:
    tasks = OneTask("our own app")

    carry_out(tasks)

    (process,) = started
    assert process.written == b"the token\n"
    assert not any("the token" in word for word in (*process.command, *process.env.values()))
    assert tasks.failed == []


@pytest.mark.parametrize(("age", "seconds"), [(0, 0.01), (3600, 0.3), (None, 0.3)])
def test_wait_is_short_while_a_job_is_new(
    age: int | None, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "IDLE_PAUSE", 0.3)
    monkeypatch.setattr(executor, "PAUSE", 0.01)
    jobs = tmp_path / "jobs"
    if age is not None:
        jobs.mkdir()
        os.utime(jobs, (time.time() - age, time.time() - age))
    began = time.monotonic()

    executor.wait(jobs, 0.01)

    taken = time.monotonic() - began
    assert taken >= seconds
    assert (taken < 0.3) == (seconds < 0.3)


STUCK = """
import os, sys, threading
from atoll.deploy.server.app_process import end_with
threading.Thread(target=end_with, args=(os.getppid(), 0.2), daemon=True).start()
print(os.getpid(), flush=True)
threading.Event().wait()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_app_that_waits_for_a_server_that_is_gone_ends_with_its_executor() -> None:
    """Its main thread handles no signal meanwhile."""
    executor_process = subprocess.Popen([sys.executable, "-c", PARENT, STUCK], stdout=subprocess.PIPE)
    assert executor_process.stdout is not None
    app = Path("/proc") / executor_process.stdout.readline().decode().strip()
    time.sleep(1)
    assert app.exists()

    executor_process.kill()
    executor_process.wait()

    end = time.monotonic() + 30
    while app.exists():
        assert time.monotonic() < end
        time.sleep(0.1)
