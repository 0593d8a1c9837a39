"""A hostile server: sends frames of its own to a real site's worker, as the site's connection would pass them on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.attacks import Findings
from support.deployed_federation import Deployed

from atoll.config import Config
from atoll.core.serialization import decode, encode
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.server.run import run_deployment
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.transport.base import LocalTransport
from atoll.deploy.transport.protocol import Frame, call, pack, unpack
from atoll.methods.fedavg import Global

pytestmark = pytest.mark.redteam

EVIL = "from pathlib import Path\nPath({marker!r}).write_text('ran')\ndef f(**options):\n    raise ValueError\n"


class Site:
    """North as the server reaches it, and the frames of an honest run of one round with it alone."""

    def __init__(self, fed: Deployed, folder: Path):
        self.socket = SiteFolder(fed.home.site("north")).socket
        self.frames: list[Frame] = []
        config = Config(method="fedavg", rounds=1, epochs=1, data="sites", min_class_count=10)
        job = DeploymentJob(str(folder), config.to_dict(), {"north": ""}, report=False)
        run_deployment(job, LocalTransport({"north": self._record}))
        self.begun = self.first("begin").head

    def _record(self, data: bytes) -> bytes:
        self.frames.append(unpack(data))
        return call(self.socket, data, 60)

    def first(self, kind: str) -> Frame:
        return next(frame for frame in self.frames if frame.kind == kind)

    def ask(self, kind: str, head: dict[str, Any], body: bytes = b"") -> Frame:
        return unpack(call(self.socket, pack(Frame(kind, head, body)), 60))

    def begin(self, run: str, **config: object) -> Frame:
        return self.ask("begin", self.begun | {"run": run, "config": self.begun["config"] | config})


@pytest.fixture(scope="module")
def site(fed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(fed, tmp_path_factory.mktemp("hostile") / "run")


@pytest.mark.parametrize("entry", ["shared_model", "server_model", "method", "terms"])
@pytest.mark.parametrize("kind", ["hello", "begin"])
def test_names_that_are_paths_are_refused_and_not_imported(
    kind: str, entry: str, site: Site, tmp_path: Path, findings: Findings
) -> None:
    marker, file = tmp_path / "marker", tmp_path / "evil.py"
    file.write_text(EVIL.format(marker=str(marker)))
    name = f"{file}:f"
    config = site.begun["config"] | {entry: [name] if entry == "terms" else name}

    reply = site.ask(kind, site.begun | {"run": "0" * 32, "config": config})

    findings.note("names", str(reply.code))
    assert reply.code in ("rules", "method")
    assert not marker.exists()


def test_seed_of_the_noise_is_refused(site: Site, findings: Findings) -> None:
    reply = site.begin("1" * 32, dp=1.0, dp_seed=7)

    findings.note("seed", str(reply.code))
    assert reply.code is not None


def test_second_announcement_with_another_epsilon_is_refused(site: Site, findings: Findings) -> None:
    reply = site.begin(site.begun["run"], dp=50.0)

    findings.note("again", str(reply.code))
    assert reply.code == "rules"


def test_many_models_to_assess_are_refused(site: Site, findings: Findings) -> None:
    """Twenty models of the server's own, in a run that has just begun."""
    run = "2" * 32
    assert site.begin(run).kind == "ready"
    shared = decode(Global, site.first("exchange").body)

    codes = []
    for number in range(20):
        model = replace(shared, params={name: values + number for name, values in shared.params.items()})
        codes.append(site.ask("assess", {"run": run, "base": None}, encode(model)).code)

    findings.note("assess", f"{codes.count(None)} of 20 answered")
    assert codes == [None] + ["rules"] * 19
