"""A real federation on this machine: a SuperLink, an executor, and a worker and a connection for each site."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import atoll
from atoll.deploy import pki
from atoll.deploy.export_sites import PUBLIC, export_sites
from atoll.deploy.flower_adapter.environment import environment
from atoll.deploy.private_files import write_private
from atoll.deploy.server.flower_control import Control, connected
from atoll.deploy.site.connection import CONNECTED
from atoll.deploy.transport.flower import write_app
from atoll.engine.setup import Setup

TOKEN = "a token of tests"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, test: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


@dataclass
class Federation:
    """Everything in one folder; processes can be killed and started again one by one."""

    folder: Path
    setup: Setup
    port: int = field(default_factory=free_port)
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        export_sites(self.setup.federation, self.folder / "data")
        self.models = {site: self.setup.pool.models[site].name for site in self.setup.pool.ids}
        for site, model in self.models.items():
            self._write_site(site, model)
        (self.state / "jobs").mkdir(parents=True)
        write_private(self.state / "executor.secret", b"a secret of tests")
        write_private(self.state / "control.secret", TOKEN.encode())

    def _write_site(self, site: str, model: str) -> None:
        (self.folder / site / "state").mkdir(parents=True)
        write_private(self.folder / site / "site.key", pki.make_site().private)
        values: dict[str, Any] = {"name": site, "data": str(self.folder / "data" / f"{site}.npz"), "model": model}
        values["allow"] = {"scores": "exact"}  # to compare with a simulation digit by digit
        if self.public.exists():
            values["public"] = str(self.public)
        (self.folder / site / "site.yaml").write_text(yaml.safe_dump(values))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def public(self) -> Path:
        return self.folder / "data" / PUBLIC

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_link()
        server = ("--server", f"127.0.0.1:{self.port}")
        self._spawn("executor", "atoll.deploy.server.executor", self.state, *server)
        with self.control() as flower:
            for site in self.models:
                flower.register(pki.spki(self._key(site)), site)
        for site in self.models:
            self.start_worker(site)
            self.start_connection(site)

    def _key(self, site: str) -> bytes:
        return pki.public_of((self.folder / site / "site.key").read_bytes())

    def start_link(self) -> None:
        place = ("--host", "127.0.0.1", "--port", self.port, "--database", self.folder / "link.db")
        isolation = ("--isolation", "process", "--superexec-auth-secret-file", self.state / "executor.secret")
        secret = self.state / "control.secret"
        self._spawn("link", "atoll.deploy.server.superlink", secret, "--insecure", *place, *isolation)
        wait_for("the SuperLink's health", self._healthy)

    def start_worker(self, site: str) -> None:
        self._spawn(f"worker {site}", "atoll.deploy.site.worker", self.folder / site)
        wait_for("the worker's socket", (self.folder / site / "state" / "worker.sock").exists)

    def start_connection(self, site: str) -> None:
        """Start a connection, again and again while Flower takes the site's last one for open."""
        name, server = f"connection {site}", ("--server", f"127.0.0.1:{self.port}", "--insecure")

        def accepted() -> bool:
            if name not in self.started or self.started[name].poll() is not None:
                self._spawn(name, "atoll.deploy.site.connection", self.folder / site, *server)
            return CONNECTED in self._log(name).read_text()[before:]

        before = len(self._log(name).read_text()) if self._log(name).exists() else 0
        wait_for("a connection", accepted, 150)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def kill(self, name: str) -> None:
        """Without a warning, and with all it has started."""
        process = self.started.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.started):
            self.kill(name)

    def _environment(self) -> dict[str, str]:
        # The same package everywhere, wherever it comes from.
        return environment(self.folder / "flwr") | {"PYTHONPATH": str(Path(atoll.__file__).parents[1])}

    def _spawn(self, name: str, module: str, *words: object) -> None:
        with self._log(name).open("ab") as log:
            command = [sys.executable, "-m", module, *map(str, words)]
            process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, start_new_session=True)
        self.started[name] = process

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1):
                return True
        except OSError:
            return False

    # -- runs ---------------------------------------------------------------------------------------------------------

    def submit(self, **terms: Any) -> None:
        """Start a run, or go on with it."""
        config = {name: value for name, value in self.setup.config.to_dict().items() if name != "out"}
        job = {
            "run_dir": str(self.run_dir),
            "config": config,
            "sites": {site: self._key(site).decode().strip() for site in self.models},
            "public": str(self.public) if self.public.exists() else "",
            "report": False,
            "retry_pause": 1.0,
            **terms,
        }
        (self.state / "jobs" / "job.json").write_text(json.dumps(job))
        with self.control() as flower:
            flower.start(write_app(self.folder / "app"), {"job": "job.json"})

    def control(self) -> AbstractContextManager[Control]:
        return connected(self.port, None, TOKEN)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def lines(self) -> list[Mapping[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def finish(self, seconds: float = 240) -> dict[str, Any]:
        """The summary, once the run has ended."""
        wait_for("the end of the run", self._ended, seconds)
        return dict(json.loads((self.run_dir / "summary.json").read_text()))

    def _ended(self) -> bool:
        events = self.run_dir / "events.jsonl"
        said = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        errors = [event["text"] for event in said if event["event"] == "error"]
        assert not errors, errors
        return (self.run_dir / "summary.json").exists()


@contextmanager
def federation(folder: Path, setup: Setup) -> Iterator[Federation]:
    made = Federation(folder, setup)
    try:
        made.start()
        yield made
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
