"""Unit files for systemd: an account for each process, and the key never beside the rows."""

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.units import write_units
from atoll.errors import AtollError


@pytest.fixture
def home(tmp_path: Path) -> FederationDir:
    made = FederationDir(tmp_path / "federation")
    made.create(["North_1"], ["localhost"], 8443, 30)
    site = SiteFolder(made.site("North_1"))
    site.set(site.file, data="/srv/rows.csv?label=y")
    return made


def service(path: Path) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return dict(parser["Service"])


def test_site_has_two_accounts_of_which_one_has_the_key_and_one_the_rows(home: FederationDir, tmp_path: Path) -> None:
    folder = home.site("North_1")

    worker, connection, accounts = write_units(folder, tmp_path / "units")

    one, other = service(worker), service(connection)
    assert (one["User"], other["User"]) == ("atoll-north-1-worker", "atoll-north-1-network")
    assert one["Group"] == other["Group"] == "atoll-north-1"
    assert one["PrivateNetwork"] == "yes"
    assert one["RestrictAddressFamilies"] == "AF_UNIX"
    assert one["MemoryMax"] == "80%"
    assert one["InaccessiblePaths"] == f"-{folder}/site.key"
    assert one["ReadOnlyPaths"] == "-/srv/rows.csv"
    assert "PrivateNetwork" not in other
    assert other["InaccessiblePaths"] == f"-{folder}/state -{folder}/site.yaml -/srv/rows.csv"
    assert f"chown atoll-north-1-network {folder}/site.key && chmod 400" in accounts.read_text()


def test_server_has_one_account_and_no_key_of_the_authority(home: FederationDir, tmp_path: Path) -> None:
    unit, _ = write_units(home.path, tmp_path / "units")

    found = service(unit)
    assert found["User"] == "atoll-federation"
    assert found["ReadWritePaths"] == str(home.path)
    assert found["InaccessiblePaths"] == f"-{home.path}/authority/ca.key"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("which", ["server", "site"])
def test_systemd_accepts_the_units(which: str, home: FederationDir, tmp_path: Path) -> None:
    made = write_units(home.path if which == "server" else home.site("North_1"), tmp_path / "units")
    units = [str(path) for path in made if path.suffix == ".service"]

    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_commands_that_make_accounts_are_valid_shell(home: FederationDir, tmp_path: Path) -> None:
    for folder in (home.path, home.site("North_1")):
        script = write_units(folder, tmp_path / "units")[-1]
        assert subprocess.run(["sh", "-n", script]).returncode == 0


def test_site_without_data_and_paths_with_spaces_are_refused(home: FederationDir, tmp_path: Path) -> None:
    site = SiteFolder(home.site("North_1"))
    site.set(site.file, data="/srv/my rows.csv")
    with pytest.raises(AtollError, match="Use a plain path"):
        write_units(site.path, tmp_path / "units")
    site.file.write_text("name: North_1\ndata: null\n")
    with pytest.raises(AtollError, match="has no data yet"):
        write_units(site.path, tmp_path / "units")
