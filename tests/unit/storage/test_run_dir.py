"""Run directories: used by one run at a time, and never overwritten by accident."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from support import killable_cli
from support.disk_crashes import crash_points

from atoll.config import Config
from atoll.errors import AtollError
from atoll.storage.run_dir import InUse, RunDir, from_parquet, to_parquet
from atoll.utils.files import write_whole

pytestmark = pytest.mark.usefixtures("without_report")
QUICK = ("--rows", 300, "--clients", 3, "--rounds", 2, "--epochs", 1)
HOLD = (
    "import os, sys, fcntl; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    "print(os.getpid(), file=f, end='', flush=True); print('held', flush=True); input()"
)


HOLD_RUN = (
    "import sys; from pathlib import Path; from atoll.storage.run_dir import RunDir; "
    "d = RunDir(Path(sys.argv[1])); d.__enter__(); print('held', flush=True); input()"
)


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def outcome(folder: Path) -> tuple[str, list[Any], Any]:
    """Digest, metrics and scores of a run, apart from times."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return summary["digest"], lines, summary["personal"]


@contextmanager
def started(*words: object) -> Iterator["subprocess.Popen[str]"]:
    """A real process of its own; it ends with the block at the latest."""
    command = [sys.executable, *(str(word) for word in words)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# -- one run at a time ------------------------------------------------------------------------------------------------


def test_directory_stays_locked_after_its_lock_file_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started("-c", HOLD_RUN, out) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (out / ".lock").unlink()

        with pytest.raises(InUse, match="in use by another run"), RunDir(out):
            pass

        holder.kill()
        holder.wait()
    with RunDir(out):  # the lock fell with the process
        pass


def test_run_in_a_directory_that_was_replaced_ends_at_its_next_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunDir(out) as run_dir:
        run_dir.sync()
        out.rename(tmp_path / "elsewhere")
        with pytest.raises(AtollError, match="moved or replaced"):
            run_dir.sync()
        out.mkdir()
        with pytest.raises(AtollError, match="moved or replaced"):
            run_dir.sync()


def test_a_directory_in_use_by_another_process_is_refused(
    tmp_path: Path, refused: Callable[..., str], atoll: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with started("-c", HOLD, out / ".lock") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for more in ((), ("--force",), ("--resume",)):
            message = refused("run", "fedavg", *QUICK, "--out", out, *more)
            named = f"in use by another run (process {holder.pid}). Wait for it, or choose another --out"
            assert named in message
        assert content(out) == {}
        holder.kill()
        holder.wait()
    atoll("run", "fedavg", *QUICK, "--out", out, "--quiet")  # the lock fell with the process


def test_two_runs_of_one_process_cannot_share_a_directory(tmp_path: Path) -> None:
    with RunDir(tmp_path), pytest.raises(AtollError, match="in use"), RunDir(tmp_path):
        pass
    with RunDir(tmp_path):
        pass


def test_a_forked_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    context = get_context("fork")
    ready = context.Event()

    def work() -> None:
        ready.set()
        time.sleep(60)

    with RunDir(tmp_path):
        worker = context.Process(target=work, daemon=True)
        worker.start()
        assert ready.wait(30)
    try:
        with RunDir(tmp_path):
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


# -- a run that is there ----------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path, atoll: Callable[..., Any]) -> Path:
    atoll("run", "fedavg", *QUICK, "--out", tmp_path / "run", "--quiet")
    return tmp_path / "run"


def test_existing_run_is_not_overwritten(finished: Path, refused: Callable[..., str]) -> None:
    before = content(finished)
    message = refused("run", "fedavg", *QUICK, "--out", finished)
    assert "already holds a run. Add --resume to continue it, --force to replace it" in message
    assert content(finished) == before


def test_force_replaces_a_run(finished: Path, atoll: Callable[..., Any]) -> None:
    (finished / "notes.txt").write_text("the user's own")
    atoll("run", "ditto", "--clients", 2, "--rounds", 1, "--epochs", 1, "--out", finished, "--force", "--quiet")
    atoll("run", "ditto", "--clients", 2, "--rounds", 1, "--epochs", 1, "--out", "fresh", "--quiet")
    assert outcome(finished) == outcome(Path("fresh"))
    assert set(content(finished)) - {"notes.txt"} == set(content(Path("fresh")))
    assert (finished / "notes.txt").read_text() == "the user's own"


def test_resume_with_force_is_refused(finished: Path, refused: Callable[..., str]) -> None:
    before = content(finished)
    assert "Give one of them" in refused("run", "fedavg", *QUICK, "--out", finished, "--force", "--resume")
    assert content(finished) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["--seed", 3], ["seed: 0 before, 3 now"]),
        (["--rate", 0.5, "--lr", 0.3], ["lr: 0.01 before, 0.3 now", "rate: 1.0 before, 0.5 now"]),
        (["--set", "optim.momentum=0"], ["settings: {} before, {'optim.momentum': 0.0} now"]),
        (["--models", "linear"], ["models: ['mlp'] before, ['linear'] now"]),
        (["--backend", "loop"], ["backend: 'vmap' before, 'loop' now"]),
    ],
)
def test_a_run_is_not_resumed_with_another_configuration(
    changes: list[object], named: list[str], finished: Path, refused: Callable[..., str]
) -> None:
    before = content(finished)
    for words in (("run", "fedavg", *QUICK, "--out", finished, "--resume"), ("run", "--resume", finished)):
        message = refused(*words, *changes)
        assert "Cannot resume" in message
        assert all(entry in message for entry in named)
    assert content(finished) == before


def test_a_run_is_not_resumed_with_another_method(finished: Path, refused: Callable[..., str]) -> None:
    assert "method: 'fedavg' before, 'local' now" in refused("run", "local", "--resume", finished)


def test_resume_accepts_changes_of_neutral_options(finished: Path, atoll: Callable[..., Any]) -> None:
    before = outcome(finished)
    more = ("--checkpoint-every", 1, "--store", "disk", "--cache", 1, "--target", 0.5)
    atoll("run", "--resume", finished, *more, "--quiet")
    assert outcome(finished) == before


@pytest.mark.parametrize("words", [("run", "fedavg", "--resume"), ("compare", "fedavg", "local", "--resume")])
def test_resume_without_a_directory_is_refused(words: tuple[str, ...], refused: Callable[..., str]) -> None:
    assert "--resume needs a run directory" in refused(*words, *QUICK)
    assert not Path("runs").exists()


def test_resume_of_a_missing_directory_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "There is no run directory 'runs/nothing' to resume" in refused("run", "--resume", "runs/nothing")
    (tmp_path / "empty").mkdir()
    assert "there is nothing to resume" in refused("run", "--resume", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


# -- interrupted processes -------------------------------------------------------------------------------------------

LONG = (
    "--rows", 300, "--clients", 4, "--rounds", 12, "--epochs", 1, "--rate", 0.5, "--checkpoint-every", 1,
    "--eval-every", 2, "--quiet",
)  # fmt: skip


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_ended_at_any_moment_can_be_resumed(
    ending: signal.Signals, tmp_path: Path, atoll: Callable[..., Any]
) -> None:
    """The moment is random, and in the message if the test fails."""
    out, seed = tmp_path / "broken", random.randrange(10**6)
    moment = random.Random(seed)
    last, pause = out / "checkpoints" / f"round-{moment.randrange(1, 8):06d}", moment.random() * 0.1
    log = tmp_path / "log"
    with killable_cli.atoll("run", "ditto", *LONG, "--store", "disk", "--out", out, log=log) as victim:
        while not last.exists() and victim.ended(0.002) is None:
            pass
        if victim.ended(pause) is None:
            victim.send(ending)
        code = victim.ended(30)
    assert code in (0, -signal.SIGKILL if ending == signal.SIGKILL else 130), log.read_text()
    if code == 130 and not (out / "summary.json").exists():
        assert (
            log.read_text()
            == f"Interrupted. Finished rounds are saved in {out}: continue with `atoll run --resume {out}`.\n"
        )
    atoll("run", "ditto", *LONG, "--out", tmp_path / "whole")
    atoll("run", "--resume", out, "--quiet")
    assert outcome(out) == outcome(tmp_path / "whole"), f"killed at the moment of seed {seed}"


def test_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.write_text("a file in the way")
    with pytest.raises(AtollError, match="Cannot write to the run directory"), RunDir(out):
        pass


# -- files ------------------------------------------------------------------------------------------------------------


def test_write_whole_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"

    for _ in crash_points(lambda: write_whole(path, b"new"), lambda: write_whole(path, b"old")):
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_configuration_of_a_run_can_be_read_back(tmp_path: Path) -> None:
    config = Config("ditto", settings={"lam": "0.5"}, models=("mlp",))
    with RunDir(tmp_path) as folder:
        folder.write_config(config)
        assert folder.config() == config


def test_metrics_are_one_line_each_and_undefined_numbers_are_null(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    folder.write_metrics([{"round": 1, "a": float("nan")}])
    folder.append_metrics({"round": 2, "a": [float("inf"), 1.5]})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"round": 1, "a": None}, {"round": 2, "a": [None, 1.5]}]
    folder.write_metrics([])
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_tables_are_read_back_from_parquet_unchanged() -> None:
    rows = [{"client": "a", "x": 0.1, "y": None}, {"client": "é/..", "x": 1e-300, "y": 2.0}]
    assert from_parquet(to_parquet(pyarrow.Table.from_pylist(rows))).to_pylist() == rows
    assert from_parquet(to_parquet(pyarrow.table({}))).num_rows == from_parquet(b"").num_rows == 0


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with RunDir(tmp_path / "a" / "b" / "c") as folder:
        assert folder.path.is_dir()
    assert os.listdir(tmp_path / "a" / "b" / "c") == [".lock"]
