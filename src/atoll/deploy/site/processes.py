"""Run the processes of a site: its worker, with data and models, and its connection, with key and network."""

import http.client
import ssl
import sys
from pathlib import Path
from typing import NamedTuple

from ...errors import AtollError
from .. import pki
from ..addresses import is_loopback, split
from ..flower_adapter import private_names
from ..flower_adapter.environment import environment
from ..flower_adapter.fleet import HEALTH, PUBLIC_KEY_HEADER, STILL_CONNECTED
from ..private_files import private_folder
from ..site_folder import SiteFolder
from ..supervisor import ManagedProcess, Say, Supervisor, alone
from .connection import CONNECTED

TIMEOUT = 10.0


class SiteProcesses:
    """The running processes of a site."""

    def __init__(self, site: SiteFolder, server: str, insecure: bool, health: str | None, say: Say):
        self.site = site
        self.server = server
        self.insecure = insecure
        self.health = health
        self.say = say
        self._reported = 0.0  # start time of the connection that was reported last

    def run(self) -> None:
        """Run until a signal arrives."""
        self.site.socket.unlink(missing_ok=True)
        worker = self._child("Worker", [sys.executable, "-m", "atoll.deploy.site.worker", str(self.site.path)])
        self._connection = self._connection_process()
        Supervisor([[worker], [self._connection]], self.say).run(self._tick)

    def _connection_process(self) -> ManagedProcess:
        command = [
            sys.executable, "-m", "atoll.deploy.site.connection", str(self.site.path), "--server", self.server,
            *(["--insecure"] if self.insecure else []), *(["--health", self.health] if self.health else []),
        ]  # fmt: skip
        child = self._child("Connection", command)
        child.ready, child.explain = self._may_connect, _explain_exit
        return child

    def _child(self, name: str, command: list[str]) -> ManagedProcess:
        return ManagedProcess(
            name, command, environment(self.site.state / "flwr"), self.site.logs / f"{name.lower()}.log"
        )

    def _may_connect(self) -> str | None:
        if not self.site.socket.exists():
            return ""  # The worker is still loading data and model.
        return knock(self.site, self.server, self.insecure)

    def _tick(self) -> None:
        """Report the connection once the server has accepted this site."""
        connection = self._connection
        if connection.alive and self._reported != connection.began and CONNECTED in connection.said():
            self._reported = connection.began
            self.say(f"Connected to {self.server}. Ctrl-C ends the site.")


def _explain_exit(said: str) -> str | None:
    """Explain why a connection ended: Flower refuses a site whose last connection has not expired yet."""
    if STILL_CONNECTED in said:
        return "The server counts this site's last connection as open, for about a minute"
    return None


def knock(site: SiteFolder, server: str, insecure: bool) -> str | None:
    """Ask the proxy whether it accepts this site; return None or the reason to wait, raise AtollError if refused."""
    host, port = split(server)
    public = pki.public_of(site.key.read_bytes())
    try:
        connection = _connection(site, host, port, insecure)
        connection.request("GET", HEALTH, headers={PUBLIC_KEY_HEADER: pki.header(public)})
        answer = connection.getresponse()
        text = answer.read(200).decode("utf-8", "replace").strip()
        connection.close()
    except ssl.SSLCertVerificationError as reason:
        raise AtollError(_distrust(server, reason)) from reason
    except (OSError, http.client.HTTPException) as reason:
        return f"no answer from {server} ({reason})"
    if answer.status == 401:
        raise AtollError(
            f"The server refuses this site's key ({pki.fingerprint(public)}): {text}. "
            "Make a new one in a new folder with `atoll deploy join`, and send its line to the server's administrator."
        )
    return None if answer.status == 200 else f"the server is not ready (status {answer.status})"


def _connection(site: SiteFolder, host: str, port: int, insecure: bool) -> http.client.HTTPConnection:
    if insecure:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    context = ssl.create_default_context(cafile=str(site.ca))
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)


def _distrust(server: str, reason: ssl.SSLCertVerificationError) -> str:
    said = reason.verify_message
    remedy = {
        10: "Renew it on the server's machine: atoll deploy reissue DIR --server.",
        62: "Use a name of the server that its certificate has, or reissue the certificate there with --server-name.",
        64: "Use a name of the server that its certificate has, or reissue the certificate there with --server-name.",
    }.get(reason.verify_code, "Either this is another server, or ca.crt belongs to another federation.")
    return f"The certificate of {server} cannot be trusted: {said}. {remedy}"


class Given(NamedTuple):
    """Options of a site that are stored for the next start."""

    data: str | None = None
    model: str | None = None
    public: str | None = None
    server: str | None = None
    task: str | None = None


def take_part(folder: Path, given: Given, insecure: bool, health: str | None, say: Say) -> None:
    """Start a site and keep it running.

    Args:
        folder: the site's folder.
        given: options that are stored in the folder.
        insecure: without TLS.
        health: HOST:PORT on which to answer probes; None for no probes.
        say: prints messages.
    """
    private_names.check(private_names.SITE_PARTS)
    site = SiteFolder(folder)
    site.name()
    site.check()
    address = given.server or site.server()
    host, _ = split(address)
    if insecure and not is_loopback(host):
        raise AtollError(f"--insecure is for trials on one machine, and {host} is another one.")
    store_options(site, given)
    for place in (site.state, site.logs):
        private_folder(place)
    with alone(site.state / "client.lock", f"This site is running already, from {str(site.path)!r}."):
        knock(site, address, insecure)  # Reports a refused key before the data are loaded.
        SiteProcesses(site, address, insecure, health, say).run()


def store_options(site: SiteFolder, given: Given) -> None:
    """Store the given options in the folder of the site."""
    places = {name: _absolute(text) for name in ("data", "public") if (text := getattr(given, name))}
    own = places | {name: text for name in ("model", "task") if (text := getattr(given, name))}
    if own:
        site.set(site.file, **own)
    if given.server:
        site.set(site.gate, server=given.server)
    if not site.data():
        raise AtollError(f"The site has no data. Give --data PATH, or write it into {site.file}.")


def _absolute(data: str) -> str:
    """Make a path absolute, so that the site can start from any folder; other names stay as they are."""
    path = Path(data).expanduser()
    return str(path.absolute()) if path.exists() else data
