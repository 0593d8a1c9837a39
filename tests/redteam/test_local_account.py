"""Another account of the server's machine: reaches the loopback and reads process lists, but no private file."""

import re
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.attacks import Findings
from support.deployed_federation import Deployed, environment, processes, wait_for

from atoll.deploy.server.processes import reached

pytestmark = pytest.mark.redteam
CONTROL = ("start-run", "list-runs", "stop-run", "register-node", "unregister-node", "list-nodes", "stream-logs")

PROJECT = """
[project]
name = "foreign"
version = "1.0.0"
description = "An app from elsewhere"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "foreign.parts:server"
clientapp = "foreign.parts:client"
[tool.flwr.app.config]
"""
PARTS = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server, client = ServerApp(), ClientApp()
"""


def ask(fed: Deployed, path: str) -> int:
    context = ssl.create_default_context(cafile=str(fed.home.ca))
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    url = f"https://localhost:{fed.running().port}{path}"
    return httpx.post(url, headers=headers, verify=context, trust_env=False).status_code


@pytest.mark.parametrize("name", CONTROL)
def test_control_without_the_secret_is_refused(name: str, fed: Deployed, findings: Findings) -> None:
    got = ask(fed, f"/v1/control/{name}")

    findings.note("control", str(got))
    assert got == 401


def test_tasks_without_the_secret_are_refused(fed: Deployed, findings: Findings) -> None:
    got = ask(fed, "/v1/runtime/acquire-task")

    findings.note("runtime", str(got))
    assert got == 401


def test_no_command_line_holds_a_secret_or_a_token(fed: Deployed, findings: Findings) -> None:
    """Neither the option of Flower that takes a token, nor as many hexadecimal digits as secrets and tokens have."""
    out = fed.folder / "watched"
    words = ("deploy", "run", fed.home.path, "fedavg", "--sites", "north,south", "--rounds", 3, "--out", out)
    run = subprocess.Popen([sys.executable, "-m", "atoll", *map(str, words)], env=environment())
    (app,) = wait_for("the server app", lambda: processes("deploy.server.app_process", str(fed.home.path)))
    wait_for("a round", lambda: (out / "metrics.jsonl").exists())

    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (app, *processes(str(fed.folder)))]

    assert run.wait(120) == 0
    secrets = [(fed.home.state / "control.secret").read_text(), "--token"]
    found = [line for line in lines if any(secret in line for secret in secrets) or re.search("[0-9a-f]{32}", line)]
    findings.note("tokens", f"{len(found)} of {len(lines)} command lines")
    assert found == []


def test_foreign_app_with_a_stolen_secret_runs_nowhere(fed: Deployed, tmp_path: Path, findings: Findings) -> None:
    marker, app = tmp_path / "marker", tmp_path / "app"
    (app / "foreign").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "foreign" / "__init__.py").touch()
    (app / "foreign" / "parts.py").write_text(PARTS.format(marker=str(marker)))

    with reached(fed.home) as flower:
        number = flower.start(app, {})
        status = wait_for("its end", lambda: flower.run(number) if flower.run(number).over else None, 60)

    findings.note("bundle", f"{status.outcome}: {status.details}")
    assert status.outcome == "failed"
    assert not marker.exists()
    assert not list(fed.folder.glob("**/flwr/apps/*foreign*"))
