"""Keeping processes alive, and ending them: with small stand-ins for Flower's programs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.deploy import supervisor
from atoll.deploy.server.monitor import Tail
from atoll.deploy.supervisor import ManagedProcess, Supervisor, alone, is_held, wait_for_port
from atoll.errors import AtollError

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
# A keeper with one child, whose number it writes down.
KEEPER = """
import os, sys
from pathlib import Path
from atoll.deploy.supervisor import ManagedProcess, Supervisor
child = ManagedProcess("sleeper", [sys.executable, "-c", {sleeper!r}], os.environ, Path("sleeper.log"))
def tick():
    if child.alive:
        Path("pid.new").write_text(str(child.process.pid)); os.replace("pid.new", "pid")
Supervisor([[child]], print).run(tick)
"""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TICK", 0.02)
    monkeypatch.setattr(supervisor, "PAUSES", (0.0, 0.05, 0.1))


def child(name: str, code: str) -> ManagedProcess:
    return ManagedProcess(name, [sys.executable, "-S", "-c", code], os.environ, Path(f"{name}.log"))


def run_until(keeper: Supervisor, over: Callable[[], bool], seconds: float = 15) -> None:
    """Keep until ``over``, then end the way a user does."""
    deadline = time.monotonic() + seconds

    def tick() -> None:
        assert time.monotonic() < deadline
        if over():
            os.kill(os.getpid(), signal.SIGTERM)

    keeper.run(tick)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def wait(test: Callable[[], Any], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ended_process_is_restarted() -> None:
    said: list[str] = []
    short = child("short", "print('once more', flush=True)")
    run_until(Supervisor([[short]], said.append), lambda: len(said) >= 3)
    assert all("short ended (code 0" in line for line in said[:3])
    assert [line.split("Next try in ")[1] for line in said[:3]] == ["0 s.", "0 s.", "0 s."]
    assert Path("short.log").read_text().count("once more") >= 3


def test_pause_grows_with_failures_and_resets_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, keeper = child("failing", ""), Supervisor([], lambda text: None)
    monkeypatch.setattr(supervisor, "PAUSES", (1.0, 2.0, 4.0))
    pauses = []
    for lasted in (0, 0, 0, 0, 1000):
        failing.start()
        assert failing.process is not None
        failing.process.wait()
        failing.began -= lasted
        keeper._on_exit(failing, [failing])
        pauses.append(round(failing.due - time.monotonic()))
    assert pauses == [2, 4, 4, 4, 1]


def test_group_restarts_together_if_one_member_dies() -> None:
    first, second, apart = child("first", SLEEPER), child("second", SLEEPER), child("apart", SLEEPER)
    seen: list[tuple[int, ...]] = []

    def over() -> bool:
        if all(c.alive for c in (first, second, apart)):
            seen.append(tuple(c.process.pid for c in (first, second, apart) if c.process))
            if len(seen) == 1:
                os.kill(seen[0][0], signal.SIGKILL)
        return len(set(seen)) == 2

    run_until(Supervisor([[first, second], [apart]], lambda text: None), over)
    before, after = seen[0], seen[-1]
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert before[2] == after[2]
    assert all(gone(pid) for pid in (*before, *after))


def test_process_starts_only_once_it_is_ready() -> None:
    reasons, said = ["", "", "no road"], list[str]()
    waiting = child("waiting", SLEEPER)
    waiting.ready = lambda: reasons.pop(0) if reasons else None
    run_until(Supervisor([[waiting]], said.append), lambda: waiting.alive)
    assert said == ["waiting waits: no road", "Ending."]


def test_error_in_ready_ends_all_processes() -> None:
    other, refused = child("other", SLEEPER), child("refused", SLEEPER)

    def refuse() -> str | None:
        if other.alive:
            pids.append(other.process.pid if other.process else 0)
            raise AtollError("never")
        return ""

    pids: list[int] = []
    refused.ready = refuse
    with pytest.raises(AtollError, match="never"):
        run_until(Supervisor([[other], [refused]], lambda text: None), lambda: False)
    assert gone(pids[0])


def test_process_that_ignores_sigterm_is_killed() -> None:
    deaf = child(
        "deaf", "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    deaf.start()
    wait(lambda: "deaf" in Path("deaf.log").read_text())
    assert deaf.process is not None
    pid = deaf.process.pid
    before = time.monotonic()
    deaf.stop(grace=0.2)
    assert gone(pid)
    assert time.monotonic() - before < 20  # it would have slept for 60


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_a_killed_supervisor(number: int) -> None:
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER.format(sleeper=SLEEPER)])
    wait(lambda: Path("pid").exists())
    pid = int(Path("pid").read_text())
    keeper.send_signal(number)
    code = keeper.wait(15)
    assert code == (-9 if number == signal.SIGKILL else 0)
    wait(lambda: gone(pid))


def test_lock_is_exclusive_until_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    with alone(path, "busy"):
        assert is_held(path)
        with pytest.raises(AtollError, match="busy"), alone(path, "busy"):
            pass
    assert not is_held(path)


def test_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    """A child that outlives its keeper for a moment must not keep the next one out."""
    with alone(tmp_path / "lock", "busy"):
        sleeper = child("sleeper", SLEEPER)
        sleeper.start()
    assert not is_held(tmp_path / "lock")
    sleeper.stop()


def test_wait_for_port_waits_and_gives_up() -> None:
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AtollError, match=f"Port {port} is used"):
            wait_for_port("127.0.0.1", port, 0.3, said.append)
    assert said == [f"Waiting for port {port} to be free."]
    wait_for_port("127.0.0.1", port, 0.3, said.append)
    assert len(said) == 1


def test_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(AtollError, match=r"Cannot listen on 203\.0\.113\.1 port 8443"):
        wait_for_port("203.0.113.1", 8443, 0.3, print)


def test_long_log_is_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_LIMIT", 10)
    talker = child("talker", "print('a long line of text')")
    for _ in range(2):
        talker.start()
        assert talker.process is not None
        talker.process.wait()
        assert talker.said() == "a long line of text\n"
    assert Path("talker.log.1").read_text() == Path("talker.log").read_text()


def test_log_of_a_running_process_is_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_LIMIT", 1000)
    talker = child("talker", "import time\nfor n in range(10**6):\n print('line', n, flush=True); time.sleep(0.0005)")

    run_until(Supervisor([[talker]], print), lambda: Path("talker.log.1").exists())

    assert Path("talker.log.1").read_text().startswith("line 0\n")
    assert Path("talker.log").stat().st_size < 100_000


def test_tail_yields_complete_lines_once_and_restarts_with_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert list(tail.fresh()) == []
    path.write_text('{"a": 1}\n{"a"')
    assert list(tail.fresh()) == [{"a": 1}]
    with path.open("a") as f:
        f.write(": 2}\n")
    assert list(tail.fresh()) == [{"a": 2}]
    assert list(tail.fresh()) == []
    (tmp_path / "new").write_text('{"a": 3}\n')
    (tmp_path / "new").replace(path)
    assert list(tail.fresh()) == [{"a": 3}]
    assert list(Tail(path, skip=True).fresh()) == []
