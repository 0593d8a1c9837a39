"""Create, read and change the folder of a federation on the server.

::

    DIR/federation.yaml     sites with their public keys; addresses of the server
    DIR/authority/          the federation's own certificate authority
    DIR/server/             the server's certificate and key
    DIR/sites/NAME/         to be copied to the site: ca.crt, site.key, site.yaml, gate.yaml
    DIR/state/              files of the running server; only the database of Flower has to be kept
    DIR/logs/, DIR/runs/    logs, and directories of runs
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from ..errors import AtollError, unknown
from ..utils.files import write_whole
from . import pki
from .addresses import join
from .private_files import private_folder, write_private
from .site_folder import GATE_YAML, SITE_YAML

LOOPBACK = ("localhost", "127.0.0.1")  # always in the certificate, because the proxy reaches Flower by the loopback
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
UPLOAD_MB = 100


@dataclass(frozen=True)
class RegisteredSite:
    """A site as the server has registered it."""

    name: str
    key: str  # public key of the site, in OpenSSH form
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

    names: tuple[str, ...]  # host names of the server; sites use the first one
    port: int
    sites: Mapping[str, RegisteredSite]
    upload_mb_per_hour: int = UPLOAD_MB  # that the gate takes from each site beside what a run has asked for

    @property
    def address(self) -> str:
        """Address by which sites reach the server."""
        return join(self.names[0], self.port)

    def site(self, name: str) -> RegisteredSite:
        """Return a site by name; raise AtollError for an unknown name."""
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
        self.ca = self.path / "authority" / "ca.crt"
        self.ca_key = self.path / "authority" / "ca.key"
        self.cert = self.path / "server" / "server.crt"
        self.key = self.path / "server" / "server.key"
        self.state = self.path / "state"
        self.logs = self.path / "logs"
        self.runs = self.path / "runs"

    def site(self, name: str) -> Path:
        """Return the folder of a site, before it is copied to the site."""
        return self.path / "sites" / name

    def read(self) -> FederationFile:
        """Read federation.yaml; raise AtollError if it is missing, damaged, or writable by other accounts."""
        self._check_writers()
        try:
            found = yaml.safe_load(self.file.read_text())
            sites = {name: RegisteredSite(name, **entry) for name, entry in found["sites"].items()}
            server = found["server"]
            upload_mb = int(server.get("upload_mb_per_hour", UPLOAD_MB))
            return FederationFile(tuple(server["names"]), int(server["port"]), sites, upload_mb)
        except FileNotFoundError:
            raise AtollError(
                f"There is no federation in {str(self.path)!r}. Make one with: atoll deploy init {self.path}"
            ) from None
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as reason:
            raise AtollError(f"{str(self.file)!r} is not a readable federation file: {reason!r}.") from reason

    def _check_writers(self) -> None:
        """Refuse a file in which other accounts of the machine could register a site of their own."""
        if self.file.exists() and self.file.stat().st_mode & 0o022:
            raise AtollError(
                f"Other accounts of this machine can write to {str(self.file)!r}, and with it let sites in. "
                f"Close it with: chmod 600 {self.file}"
            )

    def write(self, federation: FederationFile) -> None:
        """Write federation.yaml."""
        sites = {
            name: {k: v for k, v in asdict(site).items() if k != "name"} for name, site in federation.sites.items()
        }
        server = {
            "names": list(federation.names),
            "port": federation.port,
            "upload_mb_per_hour": federation.upload_mb_per_hour,
        }
        text = yaml.safe_dump({"server": server, "sites": sites}, sort_keys=False, width=1000)
        head = "# Written by `atoll deploy`; change it with `atoll deploy add`, `revoke` and `reissue`.\n"
        write_whole(self.file, (head + text).encode())
        self.file.chmod(0o600)

    def authority(self) -> pki.Pair:
        """Read the key and the certificate of the federation's authority."""
        if not self.ca_key.exists():
            raise AtollError(
                f"The authority's key is not here. Bring it back as {str(self.ca_key)!r} for this command, from where "
                "it is kept, and take it away again."
            )
        return pki.Pair(_read(self.ca_key), _read(self.ca))

    # -- creating and changing ----------------------------------------------------------------------------------------

    def create(self, sites: Sequence[str], names: Sequence[str], port: int, days: int) -> FederationFile:
        """Create a federation; refuse a folder that already holds one."""
        if self.file.exists():
            raise AtollError(
                f"{str(self.path)!r} already holds a federation, and its keys are in use. Choose another folder, "
                "or change it with `atoll deploy add`, `reissue` or `revoke`."
            )
        if self.path.exists() and any(self.path.iterdir()):
            raise AtollError(f"{str(self.path)!r} is not empty, and a federation needs a folder of its own.")
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
        """Add a site, with a key made here that is valid for ``days`` days."""
        check_names([name])
        _check_days(days)
        federation = self.read()
        if name in federation.sites:
            raise _taken(self.path, name)
        return self._keep(self._admit(federation, name, days))

    def add_key(self, line: str, days: int) -> RegisteredSite:
        """Add the site of a line that `atoll deploy join` printed; the site made its key and keeps it."""
        name, key = pki.read_public_line(line)
        check_names([name])
        _check_days(days)
        federation = self.read()
        if name in federation.accepted():  # A site whose key was revoked or has expired may come with a new one.
            raise _taken(self.path, name)
        if any(site.key.split()[1] == key.split()[1] for site in federation.sites.values()):
            raise AtollError("This key belongs to another site already. Let each site make its own: atoll deploy join")
        site = _registered(name, key, days)
        self._keep(_with(federation, site))
        return site

    def reissue_site(self, name: str, days: int) -> FederationFile:
        """Replace the key of a site; the old one is no longer accepted."""
        _check_days(days)
        federation = self.read()
        federation.site(name)
        return self._keep(self._admit(federation, name, days))

    def reissue_server(self, days: int, names: Sequence[str] = ()) -> FederationFile:
        """Replace the server's certificate, with other host names if they are given."""
        _check_days(days)
        federation = self.read()
        if names:
            federation = replace(federation, names=tuple(names))
        self._certify(federation, days)
        return self._keep(federation)

    def revoke(self, name: str) -> FederationFile:
        """Revoke the key of a site; a running server refuses it at once."""
        federation = self.read()
        site = federation.site(name)
        if site.revoked:
            raise AtollError(f"The key of {name!r} was revoked on {site.revoked[:10]} already.")
        return self._keep(_with(federation, replace(site, revoked=_stamp(_now()))))

    def _keep(self, federation: FederationFile) -> FederationFile:
        self.write(federation)
        return federation

    def _certify(self, federation: FederationFile, days: int) -> None:
        names = list(dict.fromkeys((*federation.names, *LOOPBACK)))
        made = pki.make_server(self.authority(), names, days)
        write_private(self.key, made.private)
        write_private(self.cert, made.public)

    def _admit(self, federation: FederationFile, name: str, days: int) -> FederationFile:
        folder, pair = self.site(name), pki.make_site()
        private_folder(folder)
        write_private(folder / "site.key", pair.private)
        write_private(folder / "ca.crt", _read(self.ca))
        write_private(folder / "gate.yaml", GATE_YAML.format(server=federation.address).encode())
        if not (folder / "site.yaml").exists():
            write_private(folder / "site.yaml", SITE_YAML.format(name=name).encode())
        return _with(federation, _registered(name, pair.public.decode().strip(), days))


def check_names(names: Sequence[str]) -> None:
    """Raise AtollError unless the names are valid names of sites, and all different."""
    for name in names:
        if not NAME.fullmatch(name):
            raise AtollError(f"{name!r} cannot be the name of a site: letters, digits, - and _, at most 63 of them.")
    if len(set(names)) < len(names):
        raise AtollError(f"Two sites have the same name: {', '.join(names)}.")


def _check_days(days: int) -> None:
    if not 1 <= days <= pki.AUTHORITY_DAYS:
        raise AtollError(f"--days must be between 1 and {pki.AUTHORITY_DAYS}, not {days}.")


def new_key(directory: Path, name: str) -> str:
    """Say how a site whose key was revoked gets a new one."""
    return (
        f"atoll deploy add {directory} --key 'LINE', with the line of a new `atoll deploy join` at the site; or make "
        f"the key here and carry it there: atoll deploy reissue {directory} --site {name}"
    )


def _taken(directory: Path, name: str) -> AtollError:
    return AtollError(
        f"There is a site {name!r} already: choose another name. If it needs a new key, revoke the old one with atoll "
        f"deploy revoke {directory} {name}, and then: {new_key(directory, name)}"
    )


def _registered(name: str, key: str, days: int) -> RegisteredSite:
    now = _now()
    return RegisteredSite(name, key, _stamp(now), _stamp(now + timedelta(days=days)))


def _with(federation: FederationFile, site: RegisteredSite) -> FederationFile:
    return replace(federation, sites={**federation.sites, site.name: site})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise AtollError(
            f"{str(path)!r} is missing, so the federation's folder is incomplete. Restore the file from a backup."
        ) from None


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
