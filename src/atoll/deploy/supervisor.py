"""Start processes, restart them when they die, and end them with this process."""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ..errors import AtollError
from ..utils.signals import Ended, ended_by_signals

Say = Callable[[str], None]

TICK = 0.3
GRACE = 15.0  # seconds that a process has to end after SIGTERM
STEADY = 60.0  # seconds after which a restarted process counts as healthy
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds before the next start, by number of failures
LOG_LIMIT = 10 * 2**20
TAIL = 8000  # bytes of a log that are read
PR_SET_PDEATHSIG = 1


@dataclass
class ManagedProcess:
    """A process, with its command, its log and its conditions for starting."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    # Called before every start. Returns None, or the reason to wait, which is empty if it need not be reported. An
    # AtollError ends all processes.
    ready: Callable[[], str | None] = lambda: None
    # Explains the end of the log after the process has ended, or returns None.
    explain: Callable[[str], str | None] = lambda said: None
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    _log_at: int = field(default=0, init=False)  # position in the log at the last start
    failures: int = field(default=0, init=False)
    due: float = field(default=0.0, init=False)  # earliest time of the next start

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process is not None and self.process.poll() is None

    def said(self) -> str:
        """Return the end of the log since the last start."""
        with self.log.open("rb") as f:
            f.seek(max(self._log_at, self.log.stat().st_size - TAIL))
            return f.read(TAIL).decode("utf-8", "replace")

    def rotate(self) -> None:
        """Move a long log aside, so that the latest lines and those before them are kept.

        The process goes on writing to the same file, which is emptied; a line that arrives meanwhile may be lost.
        """
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            shutil.copyfile(self.log, self.log.with_name(self.log.name + ".1"))
            os.truncate(self.log, 0)
            self._log_at = 0

    def start(self) -> None:
        """Start the process, with its output appended to the log."""
        self.rotate()
        self._log_at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                list(self.command),
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends the others in order.
                preexec_fn=_end_with_parent(os.getpid()),
            )
        self.began = time.monotonic()

    def stop(self, grace: float = GRACE) -> None:
        """End the process with SIGTERM, and with SIGKILL after ``grace`` seconds."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


class Supervisor:
    """Keeps groups of processes alive. The members of a group start in order and end together."""

    def __init__(self, groups: Sequence[Sequence[ManagedProcess]], say: Say):
        self.groups = groups
        self.say = say
        self._reported: dict[str, str] = {}  # last reason to wait of each process

    def run(self, tick: Callable[[], None] = lambda: None) -> None:
        """Run until a signal arrives or a process gives up with an AtollError."""
        with ended_by_signals():
            try:
                while True:
                    for group in self.groups:
                        self._restart_ended(group)
                        for child in group:
                            child.rotate()
                    tick()
                    time.sleep(TICK)
            except Ended:
                self.say("Ending.")
            finally:
                self._stop_all()

    def _restart_ended(self, group: Sequence[ManagedProcess]) -> None:
        for child in group:
            if child.process is not None and not child.alive:
                self._on_exit(child, group)
        for child in group:
            if child.alive:
                continue
            if not self._start(child):
                return  # Later members of the group may need this one.

    def _on_exit(self, child: ManagedProcess, group: Sequence[ManagedProcess]) -> None:
        assert child.process is not None
        code, lasted = child.process.returncode, time.monotonic() - child.began
        child.failures = 0 if lasted > STEADY else child.failures + 1
        pause = _pause(child)
        for other in reversed(group):
            other.stop()
        child.due = time.monotonic() + pause
        why = child.explain(child.said())
        self.say(f"{why or f'{child.name} ended ({_exit_reason(code)}, see {child.log})'}. Next try in {pause:.0f} s.")

    def _start(self, child: ManagedProcess) -> bool:
        if time.monotonic() < child.due:
            return False
        reason = child.ready()
        if reason is None:
            self._reported.pop(child.name, None)
            child.start()
        elif reason:
            self._report_once(child.name, reason)
            child.failures += 1
            child.due = time.monotonic() + _pause(child)
        return reason is None

    def _report_once(self, name: str, reason: str) -> None:
        if self._reported.get(name) != reason:
            self.say(f"{name} waits: {reason}")
        self._reported[name] = reason

    def _stop_all(self) -> None:
        for group in reversed(self.groups):
            for child in reversed(group):
                child.stop()


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    """Ask the kernel to end this child when its parent dies. Runs in the child before it becomes another program."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # The parent died before the call above.
            os._exit(1)

    return prepare


def _pause(child: ManagedProcess) -> float:
    return PAUSES[min(child.failures, len(PAUSES) - 1)]


def _exit_reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"


@contextmanager
def alone(path: Path, busy: str) -> Iterator[IO[str]]:
    """Hold a lock until the process ends, however it ends. Children do not inherit the lock."""
    handle = path.open("a+")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            if reason.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise AtollError(busy) from None
        yield handle
    finally:
        handle.close()


def is_held(path: Path) -> bool:
    """Return True if a process holds the lock."""
    if not path.exists():
        return False
    with path.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_port(host: str, port: int, seconds: float, say: Say) -> None:
    """Wait until the port is free: a process that just died may still hold it."""
    deadline = time.monotonic() + seconds
    reported = False
    while not _is_free(host, port):
        if time.monotonic() > deadline:
            raise AtollError(f"Port {port} is used by another program. End it, or choose another port with --port.")
        if not reported:
            say(f"Waiting for port {port} to be free.")
            reported = True
        time.sleep(0.2)


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # As servers do, so that connections in TIME_WAIT do not count.
        try:
            s.bind((host, port))
        except OSError as reason:
            if reason.errno == errno.EADDRINUSE:
                return False
            raise AtollError(f"Cannot listen on {host} port {port}: {reason.strerror}.") from reason
    return True
