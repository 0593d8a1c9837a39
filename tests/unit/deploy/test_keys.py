"""Keys, certificates and the folders they live in."""

import base64
import hashlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_private_key

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.private_files import check_private, write_private
from atoll.deploy.site_folder import SiteFolder
from atoll.errors import AtollError

Atoll = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path) -> FederationDir:
    made = FederationDir(tmp_path / "federation")
    made.create(["north", "south"], ["server.example.org", "10.0.0.7"], 8443, 30)
    return made


# -- certificates -----------------------------------------------------------------------------------------------------


def handshake(server: pki.Pair, authority: bytes, name: str) -> None:
    """TLS between a server and a client in memory; raises what the client would."""
    folder = Path("tls")
    folder.mkdir(exist_ok=True)
    (folder / "cert").write_bytes(server.public)
    (folder / "key").write_bytes(server.private)
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(folder / "cert", folder / "key")
    calling = ssl.create_default_context(cadata=authority.decode())
    calling.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer Pythons ask for
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = listening.wrap_bio(up, down, server_side=True)
    here = calling.wrap_bio(down, up, server_hostname=name)
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                if side is here:
                    raise
    assert here.version() == "TLSv1.3"


def test_certificate_is_valid_for_every_name_of_the_server() -> None:
    authority = pki.make_authority("ours")
    server = pki.make_server(authority, ["server.example.org", "10.0.0.7", "::1"], 30)
    for name in ("server.example.org", "10.0.0.7", "::1"):
        handshake(server, authority.public, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, authority.public, "elsewhere.example.org")


def test_certificate_of_another_authority_is_not_trusted() -> None:
    ours, theirs = pki.make_authority("ours"), pki.make_authority("ours")  # the name alone proves nothing
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pki.make_server(theirs, ["localhost"], 30), ours.public, "localhost")


def test_expired_certificate_is_not_trusted() -> None:
    authority = pki.make_authority("ours")
    old = pki.make_server(authority, ["localhost"], 30, start=datetime.now(UTC) - timedelta(days=31))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(old, authority.public, "localhost")


def test_server_certificate_cannot_sign_others() -> None:
    """A stolen server key must not make new servers: CA:FALSE for the server, path length 0 for the authority."""
    authority = pki.make_authority("ours")
    stolen = pki.make_server(authority, ["localhost"], 30)
    forged = pki.make_server(stolen, ["localhost"], 30)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pki.Pair(forged.private, forged.public + stolen.public), authority.public, "localhost")
    limits = x509.load_pem_x509_certificate(authority.public).extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.value.ca, limits.value.path_length) == (True, 0)
    own = x509.load_pem_x509_certificate(stolen.public).extensions.get_extension_for_class(x509.BasicConstraints)
    assert not own.value.ca


def test_certificate_expires_after_the_given_days() -> None:
    authority = pki.make_authority("ours", days=10)
    left = pki.expiry(authority.public) - datetime.now(UTC)
    assert timedelta(days=9, hours=23) < left <= timedelta(days=10)


def test_key_of_a_site_has_the_form_that_flower_reads() -> None:
    pair = pki.make_site()
    key = load_ssh_private_key(pair.private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert pki.public_of(pair.private) == pair.public
    sent = load_pem_public_key(base64.b64decode(pki.header(pair.public)))
    assert isinstance(sent, ec.EllipticCurvePublicKey)
    assert sent.public_numbers() == key.public_key().public_numbers()


def test_fingerprint_equals_that_of_ssh_keygen() -> None:
    """SHA-256 over the second word of the public line, in base64 without padding."""
    public = pki.make_site().public
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    assert pki.fingerprint(public) == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    assert len(pki.fingerprint(public)) == len("SHA256:") + 43


# -- folders ----------------------------------------------------------------------------------------------------------


def test_files_of_a_federation_are_private(home: FederationDir) -> None:
    for path in (home.path, *home.path.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_folder_of_a_site_contains_only_its_own_files(home: FederationDir) -> None:
    files = {path.name for path in home.site("north").iterdir()}
    assert files == {"ca.crt", "site.key", "site.yaml", "gate.yaml"}
    site = SiteFolder(home.site("north"))
    site.check()
    assert (site.name(), site.server(), site.data()) == ("north", "server.example.org:8443", None)
    assert site.ca.read_bytes() == home.ca.read_bytes()
    assert pki.public_of(site.key.read_bytes()).decode().strip() == home.read().sites["north"].key
    assert b"PRIVATE" not in home.file.read_bytes()


@pytest.mark.parametrize("name", ["0", "no", "null", "1e5"])
def test_site_names_that_yaml_reads_as_other_types_stay_text(tmp_path: Path, name: str) -> None:
    home = FederationDir(tmp_path / "f")
    home.create([name], ["localhost"], 8443, 30)
    assert SiteFolder(home.site(name)).name() == name
    assert list(home.read().sites) == [name]


def test_server_certificate_includes_the_loopback(home: FederationDir) -> None:
    """The gate speaks to Flower there, and checks whom it speaks to."""
    assert pki.names_of(home.cert.read_bytes()) == ["server.example.org", "10.0.0.7", "localhost", "127.0.0.1"]


def test_create_refuses_an_existing_federation(home: FederationDir) -> None:
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    with pytest.raises(AtollError, match="already holds a federation"):
        home.create(["north"], ["localhost"], 8443, 30)
    assert {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()} == before


def test_revoked_key_is_refused_until_reissued(home: FederationDir) -> None:
    old = home.read().sites["north"].key
    home.revoke("north")
    assert set(home.read().accepted()) == {"south"}
    assert "revoked" in (home.read().sites["north"].refusal() or "")
    with pytest.raises(AtollError, match="already"):
        home.revoke("north")
    home.reissue_site("north", 30)
    assert set(home.read().accepted()) == {"north", "south"}
    assert home.read().sites["north"].key != old
    assert pki.public_of((home.site("north") / "site.key").read_bytes()).decode() == home.read().sites["north"].key


def test_expired_key_is_refused(home: FederationDir) -> None:
    site = home.read().sites["north"]
    assert site.refusal(datetime.now(UTC) + timedelta(days=29)) is None
    assert "expired" in (site.refusal(datetime.now(UTC) + timedelta(days=31)) or "")


def test_reissuing_a_site_keeps_its_settings(home: FederationDir) -> None:
    site = SiteFolder(home.site("north"))
    site.set(site.file, data="rows.npz")
    home.reissue_site("north", 30)
    assert site.data() == "rows.npz"


def test_reissuing_the_server_keeps_the_authority_and_the_sites(home: FederationDir) -> None:
    ca, sites, old = home.ca.read_bytes(), home.read().sites, home.cert.read_bytes()
    home.reissue_server(60, ["new.example.org"])
    assert home.ca.read_bytes() == ca
    assert home.read().sites == sites
    assert home.cert.read_bytes() != old
    assert home.read().address == "new.example.org:8443"
    assert "new.example.org" in pki.names_of(home.cert.read_bytes())


def test_settings_are_changed_without_losing_comments(home: FederationDir) -> None:
    site = SiteFolder(home.site("north"))
    comments = [line for line in site.file.read_text().splitlines() if line.startswith("#")]
    odd = "C:\\rows: 'a' #1.csv"
    site.set(site.file, data=odd, model="mlp", extra="new")
    text = site.file.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == comments
    values = yaml.safe_load(text)
    assert values["data"] == odd
    assert (values["model"], values["extra"], values["name"]) == ("mlp", "new", "north")
    assert site.file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", [".", "site.key"])
def test_site_with_a_readable_key_is_refused(home: FederationDir, place: str) -> None:
    site = SiteFolder(home.site("north"))
    (site.path / place).chmod(0o750)
    with pytest.raises(AtollError, match="chmod"):
        site.check()


def test_private_folder_removes_access_of_others(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir(mode=0o755)
    FederationDir(tmp_path / "f").create(["north"], ["localhost"], 8443, 30)
    check_private(tmp_path / "f")


def test_write_private_replaces_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    check_private(path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", ".hidden", "-x", "é", "x" * 64, "a.b"])
def test_site_names_that_could_be_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AtollError, match="cannot be the name of a site"):
        FederationDir(tmp_path / "f").create([name], ["localhost"], 8443, 30)
    assert not (tmp_path / "f").exists()


def files_of(home: FederationDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}


def test_name_that_could_be_a_path_is_not_added(home: FederationDir) -> None:
    before = files_of(home)
    line = f"{pki.make_site().public.decode().strip()} ../x"

    with pytest.raises(AtollError, match="cannot be the name of a site"):
        home.add("../x", 30)
    with pytest.raises(AtollError, match="cannot be the name of a site"):
        home.add_key(line, 30)

    assert files_of(home) == before


def test_two_sites_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="the same name"):
        FederationDir(tmp_path / "f").create(["north", "north"], ["localhost"], 8443, 30)
    assert not (tmp_path / "f").exists()


def test_create_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(AtollError, match="is not empty"):
        FederationDir(tmp_path).create(["north"], ["localhost"], 8443, 30)


@pytest.mark.parametrize("days", [0, pki.AUTHORITY_DAYS + 1])
def test_days_that_no_key_can_last_are_refused_before_anything_is_written(
    days: int, home: FederationDir, tmp_path: Path
) -> None:
    before = files_of(home)
    line = f"{pki.make_site().public.decode().strip()} west"
    changes: list[Callable[[], object]] = [
        lambda: FederationDir(tmp_path / "other").create(["north"], ["localhost"], 8443, days),
        lambda: home.add("west", days),
        lambda: home.add_key(line, days),
        lambda: home.reissue_site("north", days),
        lambda: home.reissue_server(days),
    ]

    for change in changes:
        with pytest.raises(AtollError, match="--days must be between"):
            change()

    assert files_of(home) == before
    assert not (tmp_path / "other").exists()


def test_federation_without_a_file_of_its_authority_says_which_one_is_missing(home: FederationDir) -> None:
    home.ca.unlink()

    with pytest.raises(AtollError, match=r"ca\.crt' is missing"):
        home.add("west", 30)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_init_prints_members_with_fingerprints_and_expiry(atoll: Atoll) -> None:
    shown = atoll("deploy", "init", "fed", "--sites", "a, b", "--days", 10).stdout
    assert {"authority", "server", "site a", "site b"} <= {
        line.split("  ")[0].split(" localhost")[0] for line in shown.splitlines()
    }
    day = f"{datetime.now(UTC) + timedelta(days=10):%Y-%m-%d}"
    assert shown.count(day) == 3  # the server and two sites
    assert atoll("deploy", "show", "fed").stdout in shown
    assert pki.fingerprint(FederationDir(Path("fed")).ca.read_bytes()) in shown


def test_add_revoke_and_reissue_change_the_members(atoll: Atoll, refused: Refused) -> None:
    atoll("deploy", "init", "fed", "--sites", "a")
    atoll("deploy", "add", "fed", "b")
    atoll("deploy", "revoke", "fed", "a")
    assert "revoked on" in atoll("deploy", "show", "fed").stdout
    assert "Did you mean 'b'" in refused("deploy", "revoke", "fed", "bb")
    assert "a site 'b' already" in refused("deploy", "add", "fed", "b")
    assert "--server, or --site" in refused("deploy", "reissue", "fed")
    atoll("deploy", "reissue", "fed", "--site", "a")
    assert set(FederationDir(Path("fed")).read().accepted()) == {"a", "b"}


def test_wrong_deploy_commands_give_clear_errors(atoll: Atoll, refused: Refused) -> None:
    assert "no federation" in refused("deploy", "server", "nowhere")
    assert "not a site's folder" in refused("deploy", "client", "nowhere", "--data", "x.npz")
    atoll("deploy", "init", "fed", "--sites", "a", "--server-name", "10.255.255.1")
    assert "already holds" in refused("deploy", "init", "fed", "--sites", "a")
    assert "reached from outside" in refused("deploy", "server", "fed", "--insecure")
    assert "reached from outside" in refused("deploy", "server", "fed", "--insecure", "--host", "0.0.0.0")
    assert "another one" in refused("deploy", "client", "fed/sites/a", "--insecure", "--data", "x")
    assert "leave them out" in refused("deploy", "client", "fed/sites/a", "--only", "connection", "--data", "x")
    assert "--socket needs --only" in refused("deploy", "client", "fed/sites/a", "--socket", "s")
    assert "not an address" in refused("deploy", "client", "fed/sites/a", "--data", "x", "--health", "8081")
    assert "has no data" in refused("deploy", "client", "fed/sites/a", "--only", "worker")
    assert "No server" in refused("deploy", "stop", "fed")
    assert "--days" in refused("deploy", "init", "other", "--sites", "a", "--days", 0)
