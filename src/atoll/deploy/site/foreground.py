"""Run one of the two processes of a site alone, in the foreground: for containers, service managers and two accounts.

The worker has the rows and no key; the connection has the key and no rows. Between them is a socket, for which both
accounts need a common group. The program that starts the processes restarts them and keeps their logs.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from ...errors import AtollError
from ..addresses import is_loopback, split
from ..flower_adapter import private_names
from ..flower_adapter.environment import environment
from ..site_folder import SiteFolder
from ..supervisor import PAUSES, Say
from .processes import Given, knock, store_options

NOWHERE = Path("/nonexistent")  # Flower's own folder, which a connection does not use


def run_worker(folder: Path, given: Given, socket: Path | None, say: Say) -> NoReturn:
    """Become the worker of a site.

    Args:
        folder: the site's folder, of which the worker needs site.yaml and state.
        given: options that are stored in the folder.
        socket: socket to listen on; None for the one in the folder.
        say: prints warnings.
    """
    site = SiteFolder(folder)
    site.name()
    store_options(site, given)
    if os.access(site.key, os.R_OK) and socket:
        say(f"Warning: the account of the worker can read {site.key}. Only that of the connection needs it.")
    _become("atoll.deploy.site.worker", site, *_option("--socket", socket))


def run_connection(folder: Path, socket: Path | None, health: str | None, insecure: bool, say: Say) -> NoReturn:
    """Become the connection of a site, once the server answers.

    Args:
        folder: the site's folder, of which the connection needs site.key, ca.crt and gate.yaml.
        socket: the worker's socket; None for the one in the folder.
        health: HOST:PORT on which to answer probes.
        insecure: without TLS.
        say: prints reasons to wait.
    """
    private_names.check(private_names.SITE_PARTS)
    site = SiteFolder(folder)
    server = site.server()
    site.check_connection(insecure)
    if insecure and not is_loopback(split(server)[0]):
        raise AtollError(f"--insecure is for trials on one machine, and {server} is another one.")
    failures = 0
    while (reason := knock(site, server, insecure)) is not None:
        if not failures:
            say(f"Connection waits: {reason}")
        time.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
        failures += 1
    options = [*_option("--socket", socket), *_option("--health", health), *(["--insecure"] if insecure else [])]
    _become("atoll.deploy.site.connection", site, "--server", server, *options)


def _option(name: str, value: Path | str | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def _become(module: str, site: SiteFolder, *options: str) -> NoReturn:
    """Replace this process by a program of the site."""
    command = [sys.executable, "-m", module, str(site.path), *options]
    os.execve(sys.executable, command, environment(NOWHERE))
