"""``atoll deploy``: run federations between real machines."""

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from ...deploy.flower_adapter import private_names
from ...errors import AtollError
from ...utils.files import to_json
from ...utils.parsing import Json
from ..signatures import LONGEST, light_command

if TYPE_CHECKING:
    from ...deploy.federation_dir import FederationDir

DIR = click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
DAYS = click.option("--days", type=int, default=365, show_default=True, help="Days for which new keys are valid.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
INSECURE = click.option("--insecure", is_flag=True, help="Use no TLS and no keys; on the loopback only.")


def load_run() -> click.Command:
    """Import the command `deploy run`."""
    command: click.Command = import_module(".run", __package__).run
    return command


class Deploy(click.Group):
    """Group that imports `run` only when called: `run` needs torch, and the other commands do not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            "init", "server", "join", "client", "run", "status", "stop", "show", "add", "reissue", "revoke", "rules",
            "units",
        ]  # fmt: skip

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name == "run":
            return light_command("deploy run", load_run)
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            about = {name: command.get_short_help_str(LONGEST) for name, command in self.commands.items()}
            about["run"] = "Run one METHOD between the sites."
            formatter.write_dl([(name, about[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        private_names.require()
        return super().invoke(ctx)


@click.group(cls=Deploy)
def deploy() -> None:
    """Run federations between real machines: `init` once, then `server` here, `client` at each site, and `run`."""


@deploy.command()
@DIR
@click.option(
    "--sites", default="", help="Names of sites whose keys are made here, for trials.  [default: none, see `join`]"
)
@click.option("--server-name", help="Host names or addresses by which sites reach the server.  [default: localhost]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the gate.  [default: 8443]")
@DAYS
def init(folder: Path, sites: str, server_name: str | None, port: int | None, days: int) -> None:
    """Create a federation: certificates, keys, and a folder to copy to each site."""
    from ...deploy.addresses import PORT
    from ...deploy.federation_dir import FederationDir

    directory = FederationDir(folder)
    federation = directory.create(_words(sites), _words(server_name or "localhost"), port or PORT, days)
    _print_members(directory)
    if federation.sites:
        click.echo(
            f"\nCopy each folder under {folder / 'sites'} to its site, over a channel that only you and the site "
            "can read."
        )
    else:
        click.echo(
            f"\nSend {directory.ca} to the sites. Each makes its key with: atoll deploy join SITE_DIR --name NAME "
            f"--server {federation.address} --ca ca.crt\nand sends you one line. Take it with: atoll deploy add "
            f"{folder} --key 'LINE'"
        )
    click.echo(f"Sites will reach the server at {federation.address}. Start it with: atoll deploy server {folder}")


@deploy.command()
@DIR
@click.option("--host", help="Address to listen on.  [default: all, or the loopback if no site comes from elsewhere]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the gate.  [default: that of `init`]")
@INSECURE
def server(folder: Path, host: str | None, port: int | None, insecure: bool) -> None:
    """Run the server of a federation until Ctrl-C: Flower on the loopback, and the gate for the sites."""
    from ...deploy.federation_dir import FederationDir
    from ...deploy.server.processes import serve

    serve(FederationDir(folder), host, port, insecure, _say)


@deploy.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="SITE_DIR")
@click.option("--data", help="The site's samples: .npz, image folder, CSV or Parquet. Stored for the next start.")
@click.option("--model", help="The site's architecture, see `atoll models`. Stored for the next start.")
@click.option("--task", help="What labels are if no classes: regression or multilabel. Stored for the next start.")
@click.option("--public", help="File of public samples, for methods that distil. Stored for the next start.")
@click.option("--server", help="HOST:PORT of the gate, if not as in the folder. Stored for the next start.")
@click.option(
    "--only",
    type=click.Choice(["worker", "connection"]),
    help="Run one of the site's two processes, in the foreground: for containers, systemd and two accounts.",
)
@click.option("--socket", type=click.Path(path_type=Path), help="Socket between the two.  [default: in SITE_DIR/state]")
@click.option("--health", metavar="HOST:PORT", help="Answer GET /health for probes.  [default: no]")
@INSECURE
def client(
    folder: Path, insecure: bool, only: str | None, socket: Path | None, health: str | None, **given: str | None
) -> None:
    """Run a site until Ctrl-C: its worker, and the connection to the server."""
    from ...deploy.addresses import split
    from ...deploy.site.foreground import run_connection, run_worker
    from ...deploy.site.processes import Given, take_part

    options = Given(**given)
    if health:
        split(health)
    if only == "worker":
        run_worker(folder, options, socket, _say)
    if only == "connection":
        if any(options):
            raise AtollError(
                "--data, --model, --task, --public and --server are stored by the worker's command: leave them out."
            )
        run_connection(folder, socket, health, insecure, _say)
    if socket:
        raise AtollError("--socket needs --only: both processes of one account use the socket in SITE_DIR/state.")
    take_part(folder, options, insecure, health, _say)


@deploy.command()
@DIR
@JSON
def status(folder: Path, as_json: bool) -> None:
    """Show whether the server is running, which sites are connected, and the current runs."""
    from ...deploy.server.monitor import report

    found = report(folder)
    click.echo(to_json(found, indent=1)) if as_json else _print_status(found)
    if not found["server"]:
        raise click.exceptions.Exit(1)


@deploy.command()
@DIR
@click.option("--server", "server_too", is_flag=True, help="Stop the server as well.")
def stop(folder: Path, server_too: bool) -> None:
    """Stop the current run; the same `run` command continues from the last checkpoint."""
    from ...deploy.federation_dir import FederationDir
    from ...deploy.server.processes import reached, running

    directory = FederationDir(folder)
    with reached(directory) as flower:
        going = [run for run in flower.runs() if not run.over]
        for run in going:
            flower.stop(run.id)
            click.echo(f"Run {run.id} was stopped.")
    if not going:
        click.echo("Nothing was running.")
    found = running(directory)
    if server_too and found:
        os.kill(found.pid, signal.SIGTERM)
        click.echo("The server is stopping.")


@deploy.command()
@DIR
@JSON
def show(folder: Path, as_json: bool) -> None:
    """Show the members of a federation: fingerprints, expiry, revocations."""
    from ...deploy.federation_dir import FederationDir

    directory = FederationDir(folder)
    if as_json:
        click.echo(to_json([member._asdict() for member in _members(directory)], indent=1))
    else:
        _print_members(directory)


@deploy.command()
@DIR
@click.argument("name", required=False)
@click.option("--key", "line", help="The line that `atoll deploy join` printed at the site.")
@DAYS
def add(folder: Path, name: str | None, line: str | None, days: int) -> None:
    """Add a site by the public line of its own key, or create a folder with a key for it."""
    from ...deploy import pki
    from ...deploy.federation_dir import FederationDir

    directory = FederationDir(folder)
    if (name is None) == (line is None):
        raise AtollError("Give the line of the site with --key 'LINE', or the NAME of a site whose key is made here.")
    if name is not None:
        directory.add(name, days)
        click.echo(f"Copy {directory.site(name)} to the site. A running server accepts the site already.")
        return
    site = directory.add_key(str(line), days)
    authority = directory.ca.read_bytes()
    click.echo(
        f"{site.name} is registered with the key {pki.fingerprint(site.key.encode())}: compare it with the site."
    )
    click.echo(
        f"The site needs {directory.ca}, unless it has the file, and compares its fingerprint "
        f"{pki.fingerprint(authority)}:"
    )
    click.echo(authority.decode().strip())


@deploy.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="SITE_DIR")
@click.option("--name", required=True, help="Name of the site.")
@click.option("--server", required=True, help="HOST:PORT of the server's gate.")
@click.option("--ca", type=click.Path(path_type=Path, dir_okay=False), help="Certificate of the authority, ca.crt.")
def join(folder: Path, name: str, server: str, ca: Path | None) -> None:
    """Make the folder of a site at the site: its key stays here, and one public line goes to the server."""
    from ...deploy import pki
    from ...deploy.addresses import split
    from ...deploy.federation_dir import check_names
    from ...deploy.site_folder import SiteFolder
    from ...deploy.site_folder import join as make_folder

    check_names([name])
    split(server)
    authority = None if ca is None else pki.check_certificate(ca.read_bytes(), str(ca))
    line = make_folder(SiteFolder(folder), name, server, authority)
    click.echo("Send this line to the server's administrator, who runs: atoll deploy add DIR --key 'LINE'", err=True)
    click.echo(line)
    click.echo(f"Fingerprint of this site's key: {pki.fingerprint(line.encode())}", err=True)
    if authority:
        click.echo(
            f"Fingerprint of the authority: {pki.fingerprint(authority)}. Compare it with the administrator, over the "
            "telephone.",
            err=True,
        )
    else:
        click.echo("Add the certificate of the authority when you have it: the same command with --ca ca.crt", err=True)


@deploy.command()
@DIR
@click.option("--server", "server_too", is_flag=True, help="Issue a new certificate for the server.")
@click.option("--server-name", help="Issue a new certificate for other host names or addresses.")
@click.option("--site", help="Issue a new key for this site; the old one is refused from now on.")
@DAYS
def reissue(folder: Path, server_too: bool, server_name: str | None, site: str | None, days: int) -> None:
    """Replace the server's certificate or a site's key."""
    from ...deploy.federation_dir import FederationDir

    directory = FederationDir(folder)
    if not (server_too or server_name or site):
        raise AtollError("Nothing to reissue is named. Give --server, or --site NAME.")
    if server_too or server_name:
        directory.reissue_server(days, _words(server_name) if server_name else ())
        click.echo("The server has a new certificate. Start it again to use it; sites need nothing new.")
    if site:
        directory.reissue_site(site, days)
        click.echo(f"{site} has a new key. Copy {directory.site(site)} there; the old key is refused from now on.")


@deploy.command()
@DIR
@click.argument("name")
def revoke(folder: Path, name: str) -> None:
    """Revoke a site's key; a running server refuses it at once."""
    from ...deploy.federation_dir import FederationDir, new_key

    FederationDir(folder).revoke(name)
    click.echo(f"The key of {name} is refused from now on. To let the site in again: {new_key(folder, name)}")


@deploy.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="SITE_DIR")
@JSON
def rules(folder: Path, as_json: bool) -> None:
    """Show in plain words what a server may ask a site for, and what may leave the site."""
    from ...deploy.site.config import read_site
    from ...privacy.site_budget import SiteBudget

    site = read_site(folder)
    limit = [SiteBudget(site.privacy.dp, site.state).sentence()] if site.privacy.dp else []
    sentences = [*site.allow.sentences(), *site.privacy.sentences(), *limit]
    click.echo(to_json(sentences, indent=1) if as_json else "\n".join(sentences))


@deploy.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="units", show_default=True)
@click.option("--health", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Probes of a site.")
def units(folder: Path, out: Path, health: str) -> None:
    """Write unit files of systemd for a server (DIR) or a site (SITE_DIR), with an account for each process."""
    from ...deploy.addresses import split
    from ...deploy.units import write_units

    split(health)
    for path in write_units(folder, out, health):
        click.echo(path)
    click.echo(
        "Read the files. Then, as root: run the one that ends in accounts.sh, and start the units with: "
        "systemctl enable --now FILE",
        err=True,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _say(text: str) -> None:
    click.echo(f"{datetime.now():%H:%M:%S} {text}", err=True)


class _Member(NamedTuple):
    who: str
    fingerprint: str
    expires: str
    refused: str  # the reason, if any


def _members(directory: "FederationDir") -> Iterator[_Member]:
    from ...deploy import pki

    federation = directory.read()
    for name, file in (("authority", directory.ca), (f"server {federation.address}", directory.cert)):
        held = file.read_bytes()
        yield _Member(name, pki.fingerprint(held), f"{pki.expiry(held):%Y-%m-%d}", "")
    for name, site in federation.sites.items():
        yield _Member(f"site {name}", pki.fingerprint(site.key.encode()), site.expires[:10], site.refusal() or "")


def _print_members(directory: "FederationDir") -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("who", "fingerprint", "expires", ""):
        table.add_column(title, no_wrap=True)
    for member in _members(directory):
        table.add_row(*member)
    _console().print(table)


def _print_status(found: Json) -> None:
    click.echo(f"Server: {'running' if found['server'] else 'not running'}")
    table = Table(box=None, pad_edge=False)
    for title in ("site", "state"):
        table.add_column(title)
    for name, state in found["sites"].items():
        table.add_row(name, state)
    _console().print(table)
    for run in found["runs"]:
        click.echo(f"Run {run['out'] or run['id']}: {run['outcome'] or run['status']}")


def _console() -> Console:
    made = Console()
    return made if made.is_terminal else Console(width=max(110, made.width))
