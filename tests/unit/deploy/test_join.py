"""Sites that make their keys themselves: nothing secret passes through the server."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.site_folder import SiteFolder, join
from atoll.errors import AtollError

Refused = Callable[..., str]
OTHER_CURVE = (
    ec.generate_private_key(ec.SECP256R1())
    .public_key()
    .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    .decode()
)


@pytest.fixture
def home(tmp_path: Path) -> FederationDir:
    made = FederationDir(tmp_path / "federation")
    made.create([], ["server.example.org"], 8443, 30)
    return made


def joined(folder: Path, name: str = "north", authority: bytes | None = None) -> str:
    return join(SiteFolder(folder), name, "server.example.org:8443", authority)


def test_server_registers_a_key_that_it_has_never_held(home: FederationDir, tmp_path: Path) -> None:
    line = joined(tmp_path / "north", authority=home.ca.read_bytes())

    site = home.add_key(line, 30)

    folder = SiteFolder(tmp_path / "north")
    folder.check()
    assert (site.name, folder.name(), folder.server()) == ("north", "north", "server.example.org:8443")
    assert pki.fingerprint(site.key.encode()) == pki.fingerprint(pki.public_of(folder.key.read_bytes()))
    assert home.read().accepted() == {"north": site}
    assert not list(home.path.rglob("site.key"))


def test_joining_again_keeps_the_key_and_adds_the_certificate(home: FederationDir, tmp_path: Path) -> None:
    line = joined(tmp_path / "north")
    with pytest.raises(AtollError, match=r"lacks ca\.crt.*--ca FILE"):
        SiteFolder(tmp_path / "north").check()

    assert joined(tmp_path / "north", authority=home.ca.read_bytes()) == line
    SiteFolder(tmp_path / "north").check()
    with pytest.raises(AtollError, match="folder of the site 'north'"):
        joined(tmp_path / "north", "south")


def test_key_of_a_revoked_site_can_be_replaced_by_a_new_line(home: FederationDir, tmp_path: Path) -> None:
    home.add_key(joined(tmp_path / "old"), 30)
    with pytest.raises(AtollError, match="There is a site 'north' already"):
        home.add_key(joined(tmp_path / "new"), 30)
    home.revoke("north")

    site = home.add_key(joined(tmp_path / "new"), 30)

    assert home.read().accepted() == {"north": site}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: "", "not the line"),
        (lambda line: line.rsplit(" ", 1)[0], "not the line"),
        (lambda line: line + " and more", "not the line"),
        (lambda line: line.replace("AAAA", "BBBB"), "not the line"),
        (lambda line: line.rsplit(" ", 1)[0] + " ../north", "cannot be the name"),
        (lambda line: f"{OTHER_CURVE} north", "another kind of key"),
        (lambda line: "-----BEGIN OPENSSH PRIVATE KEY-----", "must not leave the site"),
        (
            lambda line: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8kFC0vT1Y1B8E1zXh2xV0b4q8nLZf0rJ7w0qD0a9Xk n",
            "not the line",
        ),
    ],
)
def test_line_that_is_none_is_refused(
    change: Callable[[str], str], message: str, home: FederationDir, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=message):
        home.add_key(change(joined(tmp_path / "north")), 30)
    assert not home.read().sites


def test_certificate_that_is_of_no_authority_is_refused(home: FederationDir, tmp_path: Path) -> None:
    for wrong in (home.cert.read_bytes(), b"no certificate"):
        with pytest.raises(AtollError, match="is not the certificate of a federation's authority"):
            pki.check_certificate(wrong, "FILE")

    assert pki.check_certificate(home.ca.read_bytes(), "FILE") == home.ca.read_bytes()


def test_one_key_for_two_sites_is_refused(home: FederationDir, tmp_path: Path) -> None:
    line = joined(tmp_path / "north")
    home.add_key(line, 30)
    with pytest.raises(AtollError, match="belongs to another site"):
        home.add_key(line.replace(" north", " south"), 30)


def test_reissue_without_the_key_of_the_authority_asks_for_it(home: FederationDir, tmp_path: Path) -> None:
    home.ca_key.rename(tmp_path / "ca.key")
    home.add_key(joined(tmp_path / "north"), 30)  # needs no authority

    with pytest.raises(AtollError, match=r"authority's key is not here\. Bring it back"):
        home.reissue_server(30)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_federation_file_that_others_can_write_is_refused(mode: int, home: FederationDir) -> None:
    home.file.chmod(mode)
    with pytest.raises(AtollError, match="Other accounts of this machine can write"):
        home.read()


def test_commands_pass_one_line_from_the_site_to_the_server(tmp_path: Path, refused: Refused) -> None:
    def atoll(*words: Any) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "atoll", "deploy", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    home, north = tmp_path / "federation", tmp_path / "north"
    atoll("init", home, "--server-name", "server.example.org")
    ca = home / "authority" / "ca.crt"
    made = atoll("join", north, "--name", "north", "--server", "server.example.org:8443", "--ca", ca)
    added = atoll("add", home, "--key", made.stdout.strip())

    assert made.stdout.count("\n") == 1
    assert "PRIVATE" not in made.stdout + made.stderr + added.stdout
    assert ca.read_text().strip() in added.stdout
    assert pki.fingerprint(ca.read_bytes()) in added.stdout
    assert pki.fingerprint(ca.read_bytes()) in made.stderr
    assert "north" in atoll("show", home).stdout
    assert "Give the line" in refused("deploy", "add", home)
    assert "ca.crt" in refused(
        "deploy", "join", north, "--name", "north", "--server", "a:1", "--ca", north / "site.key"
    )
