"""Real processes: a SuperLink, three sites with workers and connections, and runs that survive what kills them."""

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import small_runs
from support.flower_processes import Federation, federation, wait_for

pytestmark = pytest.mark.deploy
pytest.importorskip("flwr")

PATIENCE = 900  # seconds: on a machine that has much else to do, Flower's processes take long to start

SMALL = {"clients": 3, "rounds": 2, "rows": 300, "eval_every": 1, "min_class_count": 10}  # the last, as sites insist


@pytest.mark.parametrize("name", ["fedavg", "dcpfl", "feddw", "fedpd", "pfedes", "scd"])
def test_a_deployed_run_gives_the_bits_of_the_simulation(name: str) -> None:
    changes = SMALL | ({"wait_free": True} if name == "scd" else {})
    with (
        TemporaryDirectory(prefix="atoll") as folder,
        federation(Path(folder), small_runs.setup(name, **changes)) as real,
    ):
        real.submit()
        summary = real.finish(PATIENCE)
        assert summary["digest"] == small_runs.run(name, **changes).summary["digest"]


def test_killing_everything_in_turn_changes_nothing() -> None:
    """Worker, server app, SuperLink and connection are killed between or in rounds; then the same command again."""
    changes = SMALL | {"rounds": 5, "wait_free": True}
    with (
        TemporaryDirectory(prefix="atoll") as folder,
        federation(Path(folder), small_runs.setup("scd", **changes)) as real,
    ):
        real.submit()
        reach(real, 1)
        real.kill("worker 1")
        real.start_worker("1")
        reach(real, 2)
        kill_server_app(real)
        real.submit()
        reach(real, 3)
        real.kill("link")
        kill_server_app(real)
        real.start_link()
        real.submit()
        reach(real, 4)
        real.kill("connection 2")
        real.start_connection("2")
        summary = real.finish(PATIENCE)
        assert summary["digest"] == small_runs.run("scd", **changes).summary["digest"]
        assert [line["round"] for line in real.lines()] == [1, 2, 3, 4, 5]


def reach(real: Federation, rounds: int) -> None:
    wait_for(f"round {rounds}", lambda: len(real.lines()) >= rounds, PATIENCE)


def kill_server_app(real: Federation) -> None:
    """Processes of Flower's server app that belong to this federation."""
    mark = f"FLWR_HOME={real.folder / 'flwr'}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _has(process / "cmdline", b"app_process") and _has(process / "environ", mark):
            os.kill(int(process.name), signal.SIGKILL)


def _has(path: Path, words: bytes) -> Any:
    try:
        return words in path.read_bytes()
    except OSError:
        return False
