"""Who gets in: a real server with TLS and keys, and strangers who try."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.deployed_federation import Deployed, Standing, atoll, environment, free_port, processes, wait_for

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.private_files import write_private
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.transport.flower import write_app

pytestmark = pytest.mark.deploy
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    made = Deployed(tmp_path_factory.mktemp("s"), ["north", "south", "west", "east"]).ready()
    yield made
    made.end()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.normal(size=(60, 5)).astype("float32"), y=np.arange(60) % 3)
    return path


@pytest.fixture
def visitor(fed: Deployed) -> Iterator[httpx.Client]:
    """Somebody who has the federation's certificate, which is no secret, and nothing else."""
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    with httpx.Client(base_url=f"https://localhost:{fed.port}", verify=context, trust_env=False) as client:
        yield client


def supernode(fed: Deployed, folder: Path, *options: object) -> "subprocess.CompletedProcess[str]":
    """Flower's own node, by hand."""
    command = [
        BIN / "flower-supernode", "--superlink", f"localhost:{fed.port}", "--host", "127.0.0.1",
        "--port", free_port(), "--max-retries", 0, "--isolation", "process", *options,
    ]  # fmt: skip
    env = environment() | {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
                           "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    return subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=60, env=env)


def carried(fed: Deployed, name: str, folder: Path) -> SiteFolder:
    """A site's folder, at the site."""
    shutil.copytree(fed.home.site(name), folder)
    return SiteFolder(folder)


def refused(site: SiteFolder, rows: Path, *options: object) -> str:
    done = atoll("deploy", "client", site.path, "--data", rows, *options, seconds=60)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


# -- certificates -----------------------------------------------------------------------------------------------------


def test_without_the_federations_certificate(fed: Deployed, tmp_path: Path) -> None:
    done = supernode(fed, tmp_path, "--auth-supernode-private-key", fed.home.site("east") / "site.key")
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stdout + done.stderr


def test_without_tls(fed: Deployed, tmp_path: Path) -> None:
    assert supernode(fed, tmp_path, "--insecure").returncode != 0
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{fed.port}/health", trust_env=False)


def test_with_the_certificate_of_another_authority(fed: Deployed, rows: Path, tmp_path: Path) -> None:
    site = carried(fed, "east", tmp_path / "site")
    write_private(site.ca, pki.make_authority("another").public)
    assert "cannot be trusted" in refused(site, rows)
    done = supernode(
        fed, tmp_path, "--root-certificates", site.ca, "--auth-supernode-private-key", site.key
    )  # fmt: skip
    assert done.returncode != 0


@contextmanager
def lone_gate(home: FederationDir, host: str, port: int) -> Iterator[None]:
    """A gate with nothing behind it: enough for a handshake."""
    words = ("-m", "atoll.deploy.server.proxy", home.path, "--host", host, "--port", port, "--upstream", free_port())
    gate = subprocess.Popen([sys.executable, *map(str, words)], env=environment())
    try:
        wait_for("the gate", lambda: socket.socket().connect_ex((host, port)) == 0)
        yield
    finally:
        gate.terminate()
        gate.wait()


def test_a_server_whose_certificate_has_expired(rows: Path, tmp_path: Path) -> None:
    home, port = FederationDir(tmp_path / "old"), free_port()
    home.create(["north"], ["localhost"], port, 30)
    old = pki.make_server(home.authority(), ["localhost"], 30, start=datetime.now(UTC) - timedelta(days=40))
    write_private(home.cert, old.public)
    write_private(home.key, old.private)
    with lone_gate(home, "127.0.0.1", port):
        assert "has expired" in refused(SiteFolder(home.site("north")), rows)


def test_a_server_that_goes_by_another_name(fed: Deployed, rows: Path, tmp_path: Path) -> None:
    site, port = carried(fed, "east", tmp_path / "site"), free_port()
    with lone_gate(fed.home, "127.0.0.2", port):
        assert "name of the server that its certificate has" in refused(site, rows, "--server", f"127.0.0.2:{port}")


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_that_nobody_registered(fed: Deployed, rows: Path, tmp_path: Path) -> None:
    site = carried(fed, "east", tmp_path / "site")
    write_private(site.key, pki.make_site().private)
    assert "refuses this site's key" in refused(site, rows)
    options = ("--root-certificates", site.ca, "--auth-supernode-private-key", site.key)
    assert supernode(fed, tmp_path, *options).returncode != 0 or not _online(fed)


def test_a_node_without_any_key(fed: Deployed, tmp_path: Path) -> None:
    """Flower's nodes then register themselves."""
    with suppress(subprocess.TimeoutExpired):  # refused, it stays about without doing anything
        supernode(fed, tmp_path, "--root-certificates", fed.home.ca)
    assert not _online(fed)


def test_flower_itself_refuses_an_unknown_key_behind_the_gate(fed: Deployed, tmp_path: Path) -> None:
    """The second line: were the gate open, Flower would not let the node in either."""
    site = carried(fed, "east", tmp_path / "site")
    write_private(site.key, pki.make_site().private)
    inside = f"localhost:{fed.running().port}"
    options = ("--root-certificates", site.ca, "--auth-supernode-private-key", site.key, "--superlink", inside)
    done = supernode(fed, tmp_path, *options)
    assert done.returncode != 0
    assert "305" in done.stdout + done.stderr


def test_a_key_that_is_revoked_while_its_site_is_connected(fed: Deployed, rows: Path) -> None:
    site = fed.site("south", rows).said("Connected")
    assert fed.status()["sites"]["south"] == "online"
    assert atoll("deploy", "revoke", fed.home.path, "south").returncode == 0
    assert site.process.wait(60) == 2
    assert "revoked" in site.log.read_text()
    assert "revoked" in refused(SiteFolder(fed.home.site("south")), rows)
    assert "revoked" in fed.status()["sites"]["south"]


def test_a_site_whose_key_was_reissued_gets_in_again(fed: Deployed, rows: Path, tmp_path: Path) -> None:
    old = carried(fed, "west", tmp_path / "old")
    assert atoll("deploy", "reissue", fed.home.path, "--site", "west").returncode == 0
    assert "refuses this site's key" in refused(old, rows)
    site = fed.site("west", rows).said("Connected")
    assert site.end() == 0


def test_a_key_after_its_last_day(fed: Deployed, rows: Path) -> None:
    federation = fed.home.read()
    site = federation.sites["east"]
    late = replace(site, expires=(datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    fed.home.write(replace(federation, sites={**federation.sites, "east": late}))
    try:
        assert "expired" in refused(SiteFolder(fed.home.site("east")), rows)
    finally:
        fed.home.write(federation)


def _online(fed: Deployed) -> list[str]:
    return [name for name, state in fed.status()["sites"].items() if state == "online"]


# -- what is not for sites --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node", "/v1/control/stop-run",
     "/v1/runtime/acquire-task", "/v1/runtime/pull-messages", "/v1/fleet/register-node", "/docs", "/openapi.json",
     "/v1/fleet/..%2fcontrol/start-run"],
)  # fmt: skip
def test_control_and_runtime_are_closed(fed: Deployed, visitor: httpx.Client, path: str) -> None:
    key = pki.header(fed.home.read().sites["north"].key.encode())
    for headers in ({}, {"flwr-public-key": key}):
        for method in ("GET", "POST"):
            assert visitor.request(method, path, headers=headers).status_code == 403


def test_the_health_check_is_open(visitor: httpx.Client) -> None:
    assert visitor.get("/health").status_code == 200


def test_a_key_without_its_private_part_is_worth_nothing(fed: Deployed, visitor: httpx.Client) -> None:
    """The gate knows the key; Flower asks for a signature."""
    headers = {"flwr-public-key": pki.header(fed.home.read().sites["north"].key.encode()),
               "content-type": "application/protobuf"}  # fmt: skip
    assert visitor.post("/v1/fleet/pull-messages", headers=headers).status_code in (400, 401, 422)


def test_a_run_started_from_outside(fed: Deployed, tmp_path: Path) -> None:
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink.x]\naddress = "localhost:{fed.port}"\nroot-certificates = "{fed.home.ca}"\n'
    )
    env = environment() | {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
                           "FLWR_DISABLE_UPDATE_CHECK": "1"}  # fmt: skip
    command = [str(BIN / "flwr"), "run", str(write_app(tmp_path / "app")), "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode != 0
    assert fed.status()["runs"] == []


def test_flower_listens_on_the_loopback_alone(fed: Deployed) -> None:
    port = f"{fed.running().port:04X}"
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")
    ]
    assert listening == [f"0100007F:{port}"]


def test_tasks_on_the_loopback_need_the_servers_secret(fed: Deployed) -> None:
    """Another process of the same machine cannot take the server's part of a run."""
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    url = f"https://localhost:{fed.running().port}/v1/runtime/acquire-task"
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    assert httpx.post(url, headers=headers, verify=context, trust_env=False).status_code == 401


# -- on the server's machine ------------------------------------------------------------------------------------------


def test_a_second_server(fed: Deployed) -> None:
    done = atoll("deploy", "server", fed.home.path, seconds=60)
    assert done.returncode == 2
    assert "running already" in done.stderr
    assert fed.server.process.poll() is None


def test_nobody_else_can_read_what_a_running_server_writes(fed: Deployed) -> None:
    for path in (fed.home.path, fed.home.state, fed.home.logs, fed.home.path / "sites"):
        assert path.stat().st_mode & 0o077 == 0, path
    for name in ("executor.secret", "control.secret"):
        assert (fed.home.state / name).stat().st_mode & 0o777 == 0o600, name
    for path in fed.home.path.glob("sites/*/*.*"):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_insecure_beyond_the_loopback(fed: Deployed, host: str, tmp_path: Path) -> None:
    done = atoll("deploy", "server", fed.home.path, "--insecure", "--host", host, seconds=60)
    assert done.returncode == 2
    words = (
        "-m",
        "atoll.deploy.server.proxy",
        fed.home.path,
        "--host",
        host,
        "--port",
        free_port(),
        "--upstream",
        1,
        "--insecure",
    )
    assert subprocess.run([sys.executable, *map(str, words)], capture_output=True, timeout=60).returncode != 0


def test_run_without_tls_on_the_loopback_comes_to_its_end(rows: Path, tmp_path: Path) -> None:
    made = Deployed(tmp_path, ["north", "south"], flags=["--insecure"]).ready()
    try:
        for name in ("north", "south"):
            made.site(name, rows).said("Connected")
        done = made.run("fedavg", "--rounds", 1, "--epochs", 1, "--wait", 60)
    finally:
        made.end()

    assert done.returncode == 0, done.stderr
    assert "cannot be reached" not in done.stdout  # Sites are known by their keys without TLS as well.


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_site_that_is_killed_comes_back_when_its_old_connection_has_lapsed(fed: Deployed, rows: Path) -> None:
    """Nothing says goodbye after kill -9 of the node; Flower takes the site for present for a minute."""
    site: Standing = fed.site("north", rows).said("Connected")
    (node,) = processes("atoll.deploy.site.connection", str(fed.home.site("north")))
    os.kill(node, 9)
    site.said("last connection as open")
    wait_for("connected again", lambda: site.log.read_text().count("Connected") == 2, 150)
    assert site.end() == 0
    assert not processes(str(fed.home.site("north")))
