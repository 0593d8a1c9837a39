"""The command line in a process that can be killed: a fork of this one, so that nothing has to be imported again."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from atoll.cli import main

TICK = 0.002  # seconds between two looks at a process


class Victim:
    """A process group of its own; what it says goes to a file. It ends with the block at the latest."""

    def __init__(self, act: Callable[[], object], log: Path):
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_live(act, log))

    def __enter__(self) -> "Victim":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.ended(0) is None:
            self.send(signal.SIGKILL)
            self.ended(60)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, seconds: float) -> int | None:
        """Its exit code, or minus the signal that killed it; None if it lives on after so many seconds."""
        limit = time.monotonic() + seconds
        while self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.group, self.pid, self._code = pid, 0, os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= limit:
                return None
            else:
                time.sleep(min(TICK, max(0.0, limit - time.monotonic())))
        return self._code

    def kill(self) -> bool:
        """Whether the signal struck before the process ended by itself."""
        self.send(signal.SIGKILL)
        return self.ended(60) == -signal.SIGKILL

    def finish(self, code: int = 0, seconds: float = 300) -> str:
        """Wait for its end; gives what it said."""
        found = self.ended(seconds)
        assert found == code, f"exit code {found}: {self.log.read_text()}"
        return self.log.read_text()

    def leaves_nobody(self, seconds: float) -> bool:
        """Whether all processes that it started are gone within so many seconds."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            try:
                os.killpg(self.group, 0)
            except ProcessLookupError:
                return True
            time.sleep(TICK)
        return False


def _live(act: Callable[[], object], log: Path) -> int:
    os.setsid()
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    try:
        act()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def atoll(*words: object, log: Path, before: Callable[[], object] = lambda: None) -> Victim:
    """``atoll WORDS``; ``before`` is called first, in the process that can be killed."""

    def act() -> None:
        before()
        main([str(word) for word in words], prog_name="atoll")

    return Victim(act, log)
