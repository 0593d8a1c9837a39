"""A real federation on this machine: a SuperLink, and a worker and a SuperNode for each site, all of them processes."""

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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import atoll
from atoll.deploy.export_sites import PUBLIC, export_sites
from atoll.deploy.transport.flower import write_app
from atoll.engine.setup import Setup

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONPATH": str(Path(atoll.__file__).parents[1]),  # the same package everywhere, wherever it comes from
}


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
        self.ports = {site: free_port() for site in self.models}
        for site, model in self.models.items():
            self._write_site(site, model)
        write_app(self.folder / "app")
        (self.folder / "flwr").mkdir()
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def _write_site(self, site: str, model: str) -> None:
        (self.folder / site / "state").mkdir(parents=True)
        values = {"name": site, "data": str(self.folder / "data" / f"{site}.npz"), "model": model}
        if self.public.exists():
            values["public"] = str(self.public)
        (self.folder / site / "site.yaml").write_text(yaml.safe_dump(values))

    @property
    def public(self) -> Path:
        return self.folder / "data" / PUBLIC

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_link()
        for site in self.models:
            self.start_worker(site)
            self.start_node(site)

    def start_link(self) -> None:
        place = ("--host", "127.0.0.1", "--port", self.port, "--database", self.folder / "link.db")
        self._spawn("link", BIN / "flower-superlink", "--insecure", *place, "--disable-runtime-dependency-installation")
        wait_for("the SuperLink's health", self._healthy)

    def start_worker(self, site: str) -> None:
        self._spawn(f"worker {site}", sys.executable, "-m", "atoll.deploy.site.worker", self.folder / site)
        wait_for("the worker's socket", (self.folder / site / "state" / "worker.sock").exists)

    def start_node(self, site: str) -> None:
        config = f'worker="{self.folder / site / "state" / "worker.sock"}"'
        at = ("--host", "127.0.0.1", "--port", self.ports[site], "--node-config", config)
        self._spawn(
            f"node {site}", BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", *at
        )

    def kill(self, name: str) -> None:
        """Without a warning, and with all it has started."""
        process = self.started.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.started):
            self.kill(name)

    def _environment(self) -> dict[str, str]:
        return os.environ | QUIET | {"FLWR_HOME": str(self.folder / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def _spawn(self, name: str, *words: object) -> None:
        with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            command = [str(word) for word in words]
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
            "sites": {site: {} for site in self.models},
            "public": str(self.public) if self.public.exists() else "",
            "report": False,
            "retry_pause": 1.0,
            **terms,
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(job))
        self.flwr("run", self.folder / "app", "here", "--run-config", f'job="{path}"')

    def flwr(self, *words: object) -> str:
        command = [str(BIN / "flwr"), *map(str, words)]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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
