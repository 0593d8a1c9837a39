"""The executor of a server: asks often while a job is new, and seldom otherwise."""

import os
import time
from pathlib import Path

import pytest

from atoll.deploy.server import executor

pytest.importorskip("flwr")


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
