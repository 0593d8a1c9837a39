"""Write unit files of systemd for a server or a site, and the commands that make their accounts.

A site gets two units. The worker's account has the rows, no key and no network; the connection's account has the key
and the network, and no rows. Between them is a socket in /run, for their common group.
"""

import re
import shlex
import sys
from pathlib import Path

from ..errors import AtollError
from .federation_dir import FederationDir
from .site_folder import SiteFolder

_COMMON = """\
Restart=always
RestartSec=5
# 2: a mistake that only a person can mend, such as a revoked key; see `journalctl -u {unit}`.
RestartPreventExitStatus=2
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
UMask=0077
"""

_WORKER = """\
# Made by `atoll deploy units`. The worker of the site {name}: it has the samples, no key and no network.
[Unit]
Description=Atoll site {name}: worker

[Service]
User={name_}-worker
Group={name_}
ExecStart={python} -m atoll deploy client {folder} --only worker --socket /run/{name_}/worker.sock
RuntimeDirectory={name_}
RuntimeDirectoryMode=0750
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
# The server chooses the settings of a method, and some of them take memory.
MemoryMax=80%
# Remove the next line if the worker needs a GPU.
PrivateDevices=yes
ReadOnlyPaths=-{data}
ReadWritePaths={folder}/state
InaccessiblePaths=-{folder}/site.key
{common}
[Install]
WantedBy=multi-user.target
"""

_CONNECTION = """\
# Made by `atoll deploy units`. The connection of the site {name}: it has the key and the network, and no samples.
[Unit]
Description=Atoll site {name}: connection to the server
Wants=network-online.target
After=network-online.target {name_}-worker.service

[Service]
User={name_}-network
Group={name_}
ExecStart={python} -m atoll deploy client {folder} --only connection --socket /run/{name_}/worker.sock --health {health}
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
PrivateDevices=yes
ReadOnlyPaths={folder}
InaccessiblePaths=-{folder}/state -{folder}/site.yaml -{data}
{common}
[Install]
WantedBy=multi-user.target
"""

_SITE_ACCOUNTS = """\
#!/bin/sh
# Made by `atoll deploy units`: two accounts for the site {name}. Read it, then run it once, as root.
set -e
getent group {name_} >/dev/null || groupadd --system {name_}
for part in worker network; do
    getent passwd {name_}-$part >/dev/null ||
        useradd --system --no-create-home --shell /usr/sbin/nologin --gid {name_} {name_}-$part
done
chown root:{name_} {folder} && chmod 750 {folder}
# The key belongs to the account with the network.
chown {name_}-network {folder}/site.key && chmod 400 {folder}/site.key
chown root:{name_} {folder}/ca.crt {folder}/gate.yaml && chmod 640 {folder}/ca.crt {folder}/gate.yaml
# Settings, states and samples belong to the account without it.
chown {name_}-worker {folder}/site.yaml && chmod 400 {folder}/site.yaml
mkdir -p {folder}/state
chown -R {name_}-worker:{name_} {folder}/state && chmod 700 {folder}/state
# The worker must be able to read the samples, and the other account must not:
#   chown -R {name_}-worker {data} && chmod -R go= {data}
"""

_SERVER = """\
# Made by `atoll deploy units`. The server of the federation in {folder}.
[Unit]
Description=Atoll federation {name}: server
Wants=network-online.target
After=network-online.target

[Service]
User={name_}
Group={name_}
ExecStart={python} -m atoll deploy server {folder}
KillMode=mixed
TimeoutStopSec=60
PrivateDevices=yes
ReadWritePaths={folder}
InaccessiblePaths=-{folder}/authority/ca.key
{common}
[Install]
WantedBy=multi-user.target
"""

_SERVER_ACCOUNTS = """\
#!/bin/sh
# Made by `atoll deploy units`: the account of the server. Read it, then run it once, as root.
set -e
getent passwd {name_} >/dev/null ||
    useradd --system --user-group --no-create-home --shell /usr/sbin/nologin {name_}
chown -R {name_}:{name_} {folder}
"""


def write_units(folder: Path, out: Path, health: str = "127.0.0.1:8081") -> list[Path]:
    """Write the unit files of a federation's server or of a site.

    Args:
        folder: the folder of the federation or of the site.
        out: folder for the files.
        health: HOST:PORT on which a site's connection answers probes.

    Returns:
        The files: units, and the commands that make the accounts.
    """
    made = _server(FederationDir(folder)) if FederationDir(folder).file.exists() else _site(SiteFolder(folder), health)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (out / name).write_text(text)
    return [out / name for name in made]


def _server(directory: FederationDir) -> dict[str, str]:
    name = _account(directory.path.name)
    unit = f"{name}.service"
    values = _values(directory.path, directory.path.name, name)
    return {
        unit: _SERVER.format(**values, common=_COMMON.format(unit=unit)),
        f"{name}-accounts.sh": _SERVER_ACCOUNTS.format(**values),
    }


def _site(site: SiteFolder, health: str) -> dict[str, str]:
    data = site.data()
    if not data:
        raise AtollError(f"The site has no data yet, and the units name them. Write 'data' into {site.file} first.")
    name = _account(site.name())
    values = _values(site.path, site.name(), name) | {"data": _plain(Path(data.partition("?")[0]).absolute())}
    worker, connection = f"{name}-worker.service", f"{name}-connection.service"
    return {
        worker: _WORKER.format(**values, common=_COMMON.format(unit=worker)),
        connection: _CONNECTION.format(**values, health=health, common=_COMMON.format(unit=connection)),
        f"{name}-accounts.sh": _SITE_ACCOUNTS.format(**values),
    }


def _account(name: str) -> str:
    """Return the name of units and accounts. Names of accounts have lower case, and at most 32 letters."""
    plain = re.sub(r"[^a-z0-9-]", "-", name.lower())
    return f"atoll-{plain}"[:24].rstrip("-")


def _values(folder: Path, name: str, unit: str) -> dict[str, str]:
    return {"name": name, "name_": unit, "folder": _plain(folder), "python": _plain(Path(sys.executable))}


def _plain(path: Path) -> str:
    """Return a path that needs no quotes in units and shells; raise AtollError for another one."""
    text = str(path)
    if shlex.quote(text) != text or "%" in text:
        raise AtollError(f"{text!r} has characters that unit files cannot hold as they are. Use a plain path.")
    return text
