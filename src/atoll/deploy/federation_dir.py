"""Create and read the federation's folder on the server and the folder of each site.

::

    DIR/federation.yaml     who takes part, by public keys; addresses of the server
    DIR/authority/          the federation's own certificate authority
    DIR/server/             the server's certificate and key
    DIR/sites/NAME/         to be carried to the site: ca.crt, site.key, site.yaml, gate.yaml
    DIR/state/              of the running server; nothing in it is worth keeping but the database of Flower
    DIR/logs/, DIR/runs/    what it says and what comes out
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from ..errors import AtollError, unknown
from ..utils.files import write_whole
from . import pki
from .addresses import join

LOOPBACK = ("localhost", "127.0.0.1")  # always in the certificate: the gate itself speaks to the loopback
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")

SITE_YAML = """\
# The site {name}. These settings stay here: the server never sees this file.
name: "{name}"

# The site's own rows: an .npz file, a folder of images (a folder for each class), a CSV or a Parquet file.
# `atoll deploy client FOLDER --data PATH` fills this in.
data: null

# The site's own architecture, with options, such as mlp or cnn1 (see `atoll models`). Null: one that suits the data.
model: null

# For methods that distil: public rows, the same file at all sites and at the server.
public: null

# What may leave the site: classes with fewer rows stay here, and so do covariances that give rows away. `privacy: off`
# lets out whatever the method sends.
privacy:
  min_class_count: 10
"""

GATE_YAML = """\
# Where this site finds the gate of the federation's server.
server: "{server}"
"""


@dataclass(frozen=True)
class RegisteredSite:
    """A site as the server has registered it."""

    name: str
    key: str  # the public line of its key
    issued: str
    expires: str
    revoked: str | None = None

    def refusal(self, now: datetime | None = None) -> str | None:
        """Return why the site's key is not accepted, or None if it is."""
        if self.revoked:
            return f"revoked on {self.revoked[:10]}"
        return f"expired on {self.expires[:10]}" if datetime.fromisoformat(self.expires) <= (now or _now()) else None


@dataclass(frozen=True)
class FederationFile:
    """The content of federation.yaml."""

    names: tuple[str, ...]  # of the server, the first one for the sites
    port: int
    sites: Mapping[str, RegisteredSite]

    @property
    def address(self) -> str:
        return join(self.names[0], self.port)

    def site(self, name: str) -> RegisteredSite:
        if name not in self.sites:
            raise unknown("site", name, self.sites)
        return self.sites[name]

    def accepted(self) -> dict[str, RegisteredSite]:
        """Return the sites whose keys are accepted now."""
        return {name: site for name, site in self.sites.items() if site.refusal() is None}


class FederationDir:
    """The folder of a federation on the server's machine."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self.file = self.path / "federation.yaml"
        self.ca, self.ca_key = self.path / "authority" / "ca.crt", self.path / "authority" / "ca.key"
        self.cert, self.key = self.path / "server" / "server.crt", self.path / "server" / "server.key"
        self.state, self.logs, self.runs = self.path / "state", self.path / "logs", self.path / "runs"

    def site(self, name: str) -> Path:
        return self.path / "sites" / name

    def read(self) -> FederationFile:
        try:
            found = yaml.safe_load(self.file.read_text())
            sites = {name: RegisteredSite(name, **entry) for name, entry in found["sites"].items()}
            return FederationFile(tuple(found["server"]["names"]), int(found["server"]["port"]), sites)
        except FileNotFoundError:
            raise AtollError(
                f"There is no federation in {str(self.path)!r}. Make one with: atoll deploy init {self.path}"
            ) from None
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as reason:
            raise AtollError(f"{str(self.file)!r} is not a readable federation file: {reason!r}.") from reason

    def write(self, federation: FederationFile) -> None:
        sites = {
            name: {k: v for k, v in asdict(site).items() if k != "name"} for name, site in federation.sites.items()
        }
        server = {"names": list(federation.names), "port": federation.port}
        text = yaml.safe_dump({"server": server, "sites": sites}, sort_keys=False, width=1000)
        head = "# Written by `atoll deploy`; change it with `atoll deploy add`, `revoke` and `reissue`.\n"
        write_whole(self.file, (head + text).encode())
        self.file.chmod(0o600)

    def authority(self) -> pki.Pair:
        return pki.Pair(_read(self.ca_key), _read(self.ca))

    # -- making and changing ------------------------------------------------------------------------------------------

    def create(self, sites: Sequence[str], names: Sequence[str], port: int, days: int) -> FederationFile:
        """Create a federation; refuse a folder that already holds one."""
        if self.file.exists():
            raise AtollError(
                f"{str(self.path)!r} already holds a federation, and its keys are in use. Choose another folder, "
                "or change it with `atoll deploy add`, `reissue` or `revoke`."
            )
        check_names(sites)
        _check_days(days)
        for folder in (self.path, self.ca.parent, self.cert.parent, self.path / "sites", self.state, self.logs):
            private_folder(folder)
        authority = pki.make_authority(f"Atoll federation {self.path.name}")
        write_private(self.ca_key, authority.private)
        write_private(self.ca, authority.public)
        federation = FederationFile(tuple(names), port, {})
        self._certify(federation, days)
        for name in sites:
            federation = self._admit(federation, name, days)
        self.write(federation)
        return federation

    def add(self, name: str, days: int) -> FederationFile:
        federation = self.read()
        if name in federation.sites:
            raise AtollError(f"There is a site {name!r} already. A new key for it: atoll deploy reissue --site {name}")
        return self._keep(self._admit(federation, name, days))

    def reissue_site(self, name: str, days: int) -> FederationFile:
        """Replace the key of a site; the old one is no longer accepted."""
        federation = self.read()
        federation.site(name)
        return self._keep(self._admit(federation, name, days))

    def reissue_server(self, days: int, names: Sequence[str] = ()) -> FederationFile:
        federation = self.read()
        if names:
            federation = replace(federation, names=tuple(names))
        self._certify(federation, days)
        return self._keep(federation)

    def revoke(self, name: str) -> FederationFile:
        federation = self.read()
        site = federation.site(name)
        if site.revoked:
            raise AtollError(f"The key of {name!r} was revoked on {site.revoked[:10]} already.")
        return self._keep(_with(federation, replace(site, revoked=_stamp(_now()))))

    def _keep(self, federation: FederationFile) -> FederationFile:
        self.write(federation)
        return federation

    def _certify(self, federation: FederationFile, days: int) -> None:
        _check_days(days)
        names = list(dict.fromkeys((*federation.names, *LOOPBACK)))
        made = pki.make_server(self.authority(), names, days)
        write_private(self.key, made.private)
        write_private(self.cert, made.public)

    def _admit(self, federation: FederationFile, name: str, days: int) -> FederationFile:
        check_names([name])
        _check_days(days)
        folder, pair, now = self.site(name), pki.make_site(), _now()
        private_folder(folder)
        write_private(folder / "site.key", pair.private)
        write_private(folder / "ca.crt", _read(self.ca))
        write_private(folder / "gate.yaml", GATE_YAML.format(server=federation.address).encode())
        if not (folder / "site.yaml").exists():
            write_private(folder / "site.yaml", SITE_YAML.format(name=name).encode())
        site = RegisteredSite(name, pair.public.decode().strip(), _stamp(now), _stamp(now + timedelta(days=days)))
        return _with(federation, site)


class SiteFolder:
    """The folder of a site: its key, the federation's authority, its settings and its state."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self.ca, self.key = self.path / "ca.crt", self.path / "site.key"
        self.file, self.gate = self.path / "site.yaml", self.path / "gate.yaml"
        self.state, self.logs = self.path / "state", self.path / "logs"
        self.socket = self.state / "worker.sock"

    def name(self) -> str:
        return str(self._entries(self.file)["name"])

    def data(self) -> str | None:
        return self._entries(self.file).get("data")

    def server(self) -> str:
        return str(self._entries(self.gate)["server"])

    def _entries(self, file: Path) -> dict[str, Any]:
        try:
            found = yaml.safe_load(file.read_text())
        except FileNotFoundError:
            raise AtollError(
                f"{str(self.path)!r} is not a site's folder: it has no {file.name}. "
                "Give the folder that `atoll deploy init` made for this site."
            ) from None
        except yaml.YAMLError as reason:
            raise AtollError(f"{str(file)!r} is not readable YAML: {reason}") from reason
        needed = "server" if file == self.gate else "name"
        if not isinstance(found, dict) or not isinstance(found.get(needed), str):
            raise AtollError(f"{str(file)!r} must have an entry '{needed}'.")
        return found

    def set(self, file: Path, **entries: str) -> None:
        """Write values into one of the site's files and keep its comments."""
        text = file.read_text()
        for name, value in entries.items():
            line = yaml.safe_dump({name: value}, width=10_000).strip()
            text, count = re.subn(rf"^{re.escape(name)}:.*$", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
            text = text if count else f"{text}\n{line}\n"
        write_private(file, text.encode())

    def check(self) -> None:
        """Raise AtollError if a file is missing or readable by other accounts of this machine."""
        for file in (self.ca, self.key, self.file, self.gate):
            if not file.exists():
                raise AtollError(f"The site's folder lacks {file.name}. Carry the whole folder here again.")
        for place in (self.path, self.key):
            check_private(place)


def check_names(names: Sequence[str]) -> None:
    if not names:
        raise AtollError("A federation needs sites: --sites north,south,west")
    for name in names:
        if not NAME.fullmatch(name):
            raise AtollError(f"{name!r} cannot be the name of a site: letters, digits, - and _, at most 63 of them.")
    if len(set(names)) < len(names):
        raise AtollError(f"Two sites have the same name: {', '.join(names)}.")


def _check_days(days: int) -> None:
    if not 1 <= days <= pki.AUTHORITY_DAYS:
        raise AtollError(f"--days must be between 1 and {pki.AUTHORITY_DAYS}, not {days}.")


def private_folder(path: Path) -> None:
    """Create a folder that only this account can read."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically that other accounts can never read."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)


def check_private(path: Path) -> None:
    """Raise AtollError for a file that other accounts can read or change."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        right = "700" if path.is_dir() else "600"
        raise AtollError(
            f"Other accounts can get at {str(path)!r} (mode {mode:o}). Close it first: chmod {right} {path}"
        )


def _with(federation: FederationFile, site: RegisteredSite) -> FederationFile:
    return replace(federation, sites={**federation.sites, site.name: site})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise AtollError(f"{str(path)!r} is missing: the federation's folder is not whole.") from None


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
