"""A federation as its users run it: every process started by a command of Atoll, on the loopback, with TLS and keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.server.processes import Running, running

SLOW = 120.0  # seconds: machines that run tests may have other things to do


def wait_for(what: str, test: Callable[[], Any], seconds: float = SLOW) -> Any:
    end = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def atoll(*words: object, seconds: float = 300) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    command = [sys.executable, "-m", "atoll", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment())


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Standing:
    """A command that stays: a server or a site."""

    def __init__(self, log: Path, *words: object):
        self.log, self._words = log, [str(word) for word in words]
        self.start()

    def start(self) -> None:
        self.log.write_text("")
        with self.log.open("ab") as out:
            command = [sys.executable, "-m", "atoll", *self._words]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())

    def said(self, text: str) -> "Standing":
        def there() -> bool:
            assert self.process.poll() is None or text in self.log.read_text(), self.log.read_text()
            return text in self.log.read_text()

        wait_for(f"{self._words[:3]} says {text!r}; it said {self.log.read_text()!r}", there)
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def processes(*words: str) -> list[int]:
    """Processes of this machine whose command line has all these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if line and all(word in line for word in words):
                found.append(int(entry.name))
    return found


class Deployed:
    """A federation with its server, and sites that can be started."""

    def __init__(self, folder: Path, sites: Sequence[str], *options: object, flags: Sequence[str] = ()):
        """Make a federation with options of `init`, and start its server with flags, which sites get as well."""
        self.folder, self.home, self.port = folder, FederationDir(folder / "fed"), free_port()
        self._flags = flags
        done = atoll("deploy", "init", self.home.path, "--sites", ",".join(sites), "--port", self.port, *options)
        assert done.returncode == 0, done.stderr
        self.server = Standing(folder / "server.log", "deploy", "server", self.home.path, *flags)
        self.sites: dict[str, Standing] = {}

    def ready(self) -> "Deployed":
        self.server.said("Ready")
        return self

    def allow_comparisons(self) -> None:
        for file in self.home.path.glob("sites/*/site.yaml"):
            file.write_text(file.read_text() + "\nallow: {scores: exact, runs_per_day: 100}\n")

    def site(self, name: str, data: Path, *options: object) -> Standing:
        words = ("deploy", "client", self.home.site(name), "--data", data, *options, *self._flags)
        self.sites[name] = Standing(self.folder / f"{name}.log", *words)
        return self.sites[name]

    def run(self, *words: object, seconds: float = 600) -> "subprocess.CompletedProcess[str]":
        return atoll("deploy", "run", self.home.path, *words, seconds=seconds)

    def running(self) -> Running:
        found = wait_for("the server's note", lambda: running(self.home))
        assert isinstance(found, Running)
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(atoll("deploy", "status", self.home.path, "--json").stdout)
        return found

    def end(self) -> None:
        for standing in (*self.sites.values(), self.server):
            if standing.process.poll() is None:
                standing.end()
        wait_for("everybody gone", lambda: not processes(str(self.folder)), 40)
