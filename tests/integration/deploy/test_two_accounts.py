"""A site under two real accounts: the worker without key and network, the connection without rows."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from support.deployed_federation import Deployed, environment, free_port, wait_for

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other accounts"),
]
WORKER, NETWORK, GROUP = 61001, 61002, 61000  # numbers that need no entry in /etc/passwd


def python() -> str:
    """An interpreter of this version that every account may run."""
    for path in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        resolved = Path(path).resolve()
        if resolved.exists() and all(parent.stat().st_mode & 0o001 for parent in resolved.parents):
            return path
    pytest.skip("no interpreter of this version that other accounts may run")


def as_account(user: int, *words: object) -> list[str]:
    account = ["setpriv", f"--reuid={user}", f"--regid={GROUP}", "--clear-groups"]
    return [*account, python(), *map(str, words)]


def given(folder: Path, user: int, mode: int, group: int = GROUP) -> None:
    os.chown(folder, user, group)
    folder.chmod(mode)


@pytest.fixture
def fed() -> Iterator[Deployed]:
    folder = Path(mkdtemp(prefix="atoll"))
    folder.chmod(0o755)
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.normal(size=(120, 5)).astype("float32"), y=np.arange(120) % 3)
    made = Deployed(folder, ["north"]).ready()
    yield made
    made.end()
    shutil.rmtree(folder)


class Site:
    """North under two accounts, with the rights that `atoll deploy units` gives."""

    def __init__(self, fed: Deployed):
        self.fed = fed
        self.folder = fed.folder / "north"
        shutil.move(fed.home.site("north"), self.folder)
        self.rows = fed.folder / "rows.npz"
        yaml = self.folder / "site.yaml"
        yaml.write_text(yaml.read_text().replace("data: null", f"data: {self.rows}"))
        (self.folder / "state").mkdir()
        self.run = fed.folder / "run"
        self.run.mkdir()
        given(self.folder, 0, 0o750)
        given(self.folder / "site.key", NETWORK, 0o400)
        given(yaml, WORKER, 0o400)
        given(self.folder / "state", WORKER, 0o700)
        given(self.rows, WORKER, 0o400)
        given(self.run, WORKER, 0o750)
        for name in ("ca.crt", "gate.yaml"):
            given(self.folder / name, 0, 0o640)
        self.probe = f"127.0.0.1:{free_port()}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        client = ("-m", "atoll", "deploy", "client", self.folder, "--socket", self.run / "worker.sock", "--only")
        self._spawn("worker", ["unshare", "--net", *as_account(WORKER, *client, "worker")])
        wait_for("the worker's socket", (self.run / "worker.sock").exists)
        self._spawn("connection", as_account(NETWORK, *client, "connection", "--health", self.probe))

    def _spawn(self, name: str, command: list[str]) -> None:
        env = environment() | {"PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.fed.folder / f"{name}.log").open("wb") as log:
            self.started.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd="/"))

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.probe}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def attempt(self, user: int, code: str, *more: str) -> str:
        """Run code under an account; return its last line of output."""
        done = subprocess.run([*more, *as_account(user, "-c", code)], capture_output=True, text=True, cwd="/")
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    def end(self) -> None:
        for process in self.started:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_run_with_a_site_of_two_accounts_comes_to_its_end_and_neither_can_do_the_others_part(fed: Deployed) -> None:
    site = Site(fed)
    try:
        site.start()
        wait_for(f"health; {[log.read_text() for log in fed.folder.glob('*.log')]}", site.healthy, 60)

        done = fed.run("fedavg", "--rounds", 2, "--epochs", 1, "--wait", 60)

        assert done.returncode == 0, done.stderr
        assert site.healthy()
        owners = {path.stat().st_uid for path in (site.folder / "state").rglob("*")}
        assert owners == {WORKER}
    finally:
        site.end()
    denied, offline = "PermissionError", "unreachable"
    assert denied in site.attempt(NETWORK, f"open({str(site.rows)!r})")
    assert denied in site.attempt(NETWORK, f"import os; os.listdir({str(site.folder / 'state')!r})")
    assert denied in site.attempt(WORKER, f"open({str(site.folder / 'site.key')!r})")
    connect = f"import socket; socket.create_connection(('127.0.0.1', {fed.port}), 2)"
    assert offline in site.attempt(WORKER, connect, "unshare", "--net")
    assert site.attempt(NETWORK, connect + "; print('reached')") == "reached"


def test_connection_whose_key_others_can_read_does_not_start(fed: Deployed) -> None:
    site = Site(fed)
    given(site.folder / "site.key", NETWORK, 0o440)
    client = ("-m", "atoll", "deploy", "client", site.folder, "--only", "connection")

    done = subprocess.run(
        as_account(NETWORK, *client),
        capture_output=True, text=True, env=environment() | {"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip

    assert done.returncode == 2
    assert "Other accounts can read" in done.stderr
