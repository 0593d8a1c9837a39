"""Run the processes of a server: Flower's SuperLink and Atoll's executor on the loopback, and the reverse proxy."""

import json
import os
import secrets
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import AtollError
from ...utils.files import to_json, write_whole
from .. import pki
from ..addresses import is_loopback, join
from ..federation_dir import FederationDir, FederationFile, new_key
from ..flower_adapter import private_names
from ..flower_adapter.environment import environment
from ..private_files import private_folder, write_private
from ..supervisor import ManagedProcess, Say, Supervisor, alone, free_port, is_held, wait_for_port
from . import flower_control

OLD_PROCESSES = 40.0  # seconds for the processes of a killed server to end
WARN_DAYS = 30
EXECUTOR_SECRET, CONTROL_SECRET = "executor.secret", "control.secret"


@dataclass(frozen=True)
class Running:
    """How to reach the server of a federation from its own machine."""

    pid: int
    port: int  # of Flower, on the loopback
    host: str  # of the gate
    gate: int
    insecure: bool


class ServerProcesses:
    """The running server of a federation."""

    def __init__(self, directory: FederationDir, host: str, port: int, insecure: bool, say: Say):
        self.directory = directory
        self.host = host
        self.gate_port = port
        self.insecure = insecure
        self.say = say
        self.port = free_port()
        self.ca = None if insecure else directory.ca
        self._synced: tuple[int, float] | None = None  # change of federation.yaml and start of Flower, as registered
        self._ready = False

    def run(self) -> None:
        """Run until a signal arrives."""
        # New at each start, so that processes of an earlier server are refused.
        write_private(self.directory.state / EXECUTOR_SECRET, secrets.token_bytes(32))
        write_private(self.directory.state / CONTROL_SECRET, secrets.token_hex(32).encode())
        link, executor, gate = self._superlink(), self._executor(), self._gate()
        self._link = link
        note = Running(os.getpid(), self.port, self.host, self.gate_port, self.insecure)
        write_whole(self.directory.state / "server.json", to_json(vars(note)).encode())
        Supervisor([[link, executor], [gate]], self.say).run(self._tick)

    # -- the processes ------------------------------------------------------------------------------------------------

    def _superlink(self) -> ManagedProcess:
        state = self.directory.state
        tls = ["--insecure"] if self.insecure else [
            "--ssl-ca-certfile", str(self.directory.ca), "--ssl-certfile", str(self.directory.cert),
            "--ssl-keyfile", str(self.directory.key), "--enable-supernode-auth",
        ]  # fmt: skip
        command = [
            sys.executable, "-m", "atoll.deploy.server.superlink", str(state / CONTROL_SECRET),
            "--host", "127.0.0.1", "--port", str(self.port), "--database", str(state / "flower.db"),
            "--isolation", "process", "--superexec-auth-secret-file", str(state / EXECUTOR_SECRET),
            "--disable-runtime-dependency-installation", *tls,
        ]  # fmt: skip
        return self._child("SuperLink", command)

    def _executor(self) -> ManagedProcess:
        command = [
            sys.executable, "-m", "atoll.deploy.server.executor", str(self.directory.state),
            "--server", f"127.0.0.1:{self.port}", *(["--ca", str(self.ca)] if self.ca else []),
        ]  # fmt: skip
        child = self._child("Executor", command)
        child.ready = self._flower_answers
        return child

    def _gate(self) -> ManagedProcess:
        command = [
            sys.executable, "-m", "atoll.deploy.server.proxy", str(self.directory.path), "--host", self.host,
            "--port", str(self.gate_port), "--upstream", str(self.port), *(["--insecure"] if self.insecure else []),
        ]  # fmt: skip
        return self._child("Gate", command)

    def _child(self, name: str, command: list[str]) -> ManagedProcess:
        # At its usual level Flower writes a line for every request, and sites ask every few seconds.
        env = environment(self.directory.state / "flwr") | {"FLWR_LOG_LEVEL": "WARNING"}
        return ManagedProcess(name, command, env, self.directory.logs / f"{name.lower()}.log")

    def _flower_answers(self) -> str | None:
        return None if answers(self.port, self.ca) else ""

    # -- registered sites -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Register the accepted sites with Flower whenever they change or Flower restarts."""
        mark = (self.directory.file.stat().st_mtime_ns, self._link.began)
        if mark == self._synced or not self._link.alive or not answers(self.port, self.ca):
            return
        try:
            self._register(self.directory.read())
        except flower_control.Unreachable:
            return  # Flower has just ended, and will be restarted.
        except AtollError as mistake:
            self.say(f"Warning: the registered sites are unchanged. {mistake}")
        self._synced = mark
        if not self._ready:
            self._ready = True
            self.say(f"Ready: sites reach the gate at {join(self.host, self.gate_port)}. Ctrl-C ends the server.")

    def _register(self, federation: FederationFile) -> None:
        wanted = {pki.spki(site.key.encode()): name for name, site in federation.accepted().items()}
        with flower_control.connected(self.port, self.ca, control_token(self.directory)) as flower:
            known = {node.key: node for node in flower.nodes()}
            for key, node in known.items():
                if key not in wanted and node.status != flower_control.GONE:
                    flower.unregister(node.id)
            for key, name in wanted.items():
                if key not in known:
                    flower.register(key, name)
                elif known[key].status == flower_control.GONE:
                    self.say(
                        f"The key of {name!r} was revoked and cannot be used again. A new one: "
                        f"{new_key(self.directory.path, name)}"
                    )


def serve(directory: FederationDir, host: str | None, port: int | None, insecure: bool, say: Say) -> None:
    """Start the server of a federation and keep it running."""
    private_names.check(private_names.SERVER_PARTS)
    federation = directory.read()
    host = host or default_host(federation)
    if insecure and not is_loopback(host):
        raise AtollError(
            f"--insecure is for trials on one machine: {host} can be reached from outside. "
            "Leave it out, or listen on 127.0.0.1."
        )
    for folder in (directory.path, directory.state, directory.logs):
        private_folder(folder)
    _warn(directory, federation, say)
    with alone(directory.state / "server.lock", f"A server of {str(directory.path)!r} is running already."):
        chosen = port or federation.port
        wait_for_port(host, chosen, OLD_PROCESSES, say)
        os.environ.update(environment(directory.state / "flwr"))  # for Flower's client in this process
        ServerProcesses(directory, host, chosen, insecure, say).run()


def default_host(federation: FederationFile) -> str:
    """Return the address to listen on: all addresses if sites are on other machines, else the loopback."""
    return "127.0.0.1" if all(is_loopback(name) for name in federation.names) else "0.0.0.0"


def _warn(directory: FederationDir, federation: FederationFile, say: Say) -> None:
    for days, what, remedy in expiring(directory, federation):
        if days < WARN_DAYS:
            state = "has expired" if days < 0 else f"expires in {days} days"
            say(f"Warning: {what} {state}. Renew it with: atoll deploy reissue {directory.path} {remedy}")


def expiring(directory: FederationDir, federation: FederationFile) -> Iterator[tuple[int, str, str]]:
    """Yield certificates and keys that expire soon: days left, name, and the option that renews them."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    yield (pki.expiry(directory.cert.read_bytes()) - now).days, "the server's certificate", "--server"
    for name, site in federation.sites.items():
        if not site.revoked:
            yield (datetime.fromisoformat(site.expires) - now).days, f"the key of {name!r}", f"--site {name}"


def answers(port: int, ca: Path | None) -> bool:
    """Return True if Flower answers."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    try:
        with urllib.request.urlopen(f"http{'s' if ca else ''}://127.0.0.1:{port}/health", timeout=5, context=context):
            return True
    except OSError:
        return False


def running(directory: FederationDir) -> Running | None:
    """Return the running server of a federation, or None."""
    if not is_held(directory.state / "server.lock"):
        return None
    try:
        return Running(**json.loads((directory.state / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def reached(directory: FederationDir, timeouts: float = 30.0) -> Iterator[flower_control.Control]:
    """Connect to Flower's control interface; raise AtollError if the server does not run."""
    directory.read()
    deadline = time.monotonic() + timeouts
    while (found := running(directory)) is None or not answers(found.port, None if found.insecure else directory.ca):
        if found is None or time.monotonic() > deadline:
            raise AtollError(
                f"No server of this federation is running here. Start it: atoll deploy server {directory.path}"
            )
        time.sleep(0.3)
    os.environ.update(environment(directory.state / "flwr"))
    ca = None if found.insecure else directory.ca
    with flower_control.connected(found.port, ca, control_token(directory)) as flower:
        yield flower


def control_token(directory: FederationDir) -> str:
    """Return the token of the control interface of the running server."""
    return (directory.state / CONTROL_SECRET).read_text()
