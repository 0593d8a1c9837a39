"""Sites of a federation in this process: cut from a simulated one, reached through a line that can be made to fail."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from atoll.deploy.export_sites import PUBLIC, export_sites
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.server.run import run_deployment
from atoll.deploy.site.config import SiteConfig, read_site
from atoll.deploy.site.worker import local
from atoll.deploy.transport.base import Arrival, LocalTransport
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.engine.result import Result
from atoll.engine.setup import Setup

SMALL = {"clients": 3, "rounds": 2, "rows": 160, "eval_every": 1}

LATE = 1000.0  # seconds: longer than a round may take

Fate = Callable[[str, Frame], str]  # of a request to a site: "" if it arrives, "lost", "late", or the code it ends with


def babbling(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A site whose uploads are bytes without sense."""

    def babble(data: bytes) -> bytes:
        reply = unpack(answer(data))
        return pack(reply._replace(body=b"babble")) if reply.kind == "upload" else pack(reply)

    return babble


class Wire(LocalTransport):
    """A line on which things happen. What is late is carried out at once, and its reply arrives much later."""

    def __init__(self, sites: dict[str, Callable[[bytes], bytes]], fate: Fate = lambda site, frame: ""):
        super().__init__(sites)
        self.fate, self.asked, self._held = fate, list[tuple[str, Frame]](), list[tuple[float, Arrival]]()
        self._now = 0.0

    def clock(self) -> float:
        """Time passes only while nothing happens."""
        return self._now

    def receive(self, wait: float) -> list[Arrival]:
        if not self._waiting:
            self._now += wait
            due = [arrival for when, arrival in self._held if when <= self._now]
            self._held = [(when, arrival) for when, arrival in self._held if when > self._now]
            return due
        ticket, site, request = self._waiting[0]
        frame = unpack(request.data)
        self.asked.append((site, frame))
        fate = self.fate(site, frame)
        if fate == "":
            return super().receive(wait)
        if fate == "late":
            self._held += [(self._now + LATE, arrival) for arrival in super().receive(wait)]
            return []
        self._waiting.popleft()
        return [] if fate == "lost" else [Arrival(ticket, code=fate)]


@dataclass
class Sites:
    """Folders of all sites of a simulated federation."""

    folder: Path
    setup: Setup
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        export_sites(self.setup.federation, self.folder / "data")
        self.names = self.setup.pool.ids
        for name in self.names:
            (self.folder / name / "state").mkdir(parents=True)
            self.write(
                name,
                data=str(self.folder / "data" / f"{name}.npz"),
                model=self.setup.pool.models[name].name,
                public=self.public,
                privacy="off",
                allow={"scores": "exact"},  # to compare with a simulation digit by digit
            )

    def write(self, name: str, **values: Any) -> None:
        path = self.folder / name / "site.yaml"
        known = yaml.safe_load(path.read_text()) if path.exists() else {"name": name}
        path.write_text(yaml.safe_dump(known | values))

    @property
    def public(self) -> str:
        path = self.folder / "data" / PUBLIC
        return str(path) if path.exists() else ""

    def site(self, name: str) -> SiteConfig:
        return read_site(self.folder / name)

    def line(self, fate: Fate = lambda site, frame: "") -> Wire:
        """With workers that have just been started."""
        return Wire({name: local(self.site(name)) for name in self.names}, fate)

    def job(self, **changes: Any) -> DeploymentJob:
        config = {name: value for name, value in self.setup.config.to_dict().items() if name != "out"}
        config |= changes.pop("config", {})
        terms = {"public": self.public, "report": False}
        values = terms | {"sites": dict.fromkeys(self.names, "")} | changes
        return DeploymentJob(run_dir=str(self.folder / "run"), config=config, **values)

    def run(self, line: Wire | None = None, **changes: Any) -> Result:
        line = line or self.line()
        return run_deployment(self.job(**changes), line, clock=line.clock)


def book(folder: Path, kind: str = "upload") -> list[Any]:
    """Lines of one kind in a site's own log of everything that was sent."""
    lines = (folder / "state" / "sent.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def personal(result: Result) -> str:
    """Personal metrics of all rounds, to the last digit."""
    return repr([line["personal"] for line in result.history])
