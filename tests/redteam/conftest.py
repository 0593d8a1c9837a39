"""A real federation with TLS and keys on the loopback, for attackers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.attacks import BOUNDARIES, Findings
from support.deployed_federation import Deployed
from support.paths import ROOT

SITES = ("north", "south")
RUN = ("--rounds", 2, "--epochs", 1, "--round-timeout", 60, "--wait", 60, "--json")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.normal(size=(300, 5)).astype("float32"), y=np.arange(300) % 3)
    return path


@pytest.fixture(scope="session")
def fed(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Iterator[Deployed]:
    """North and south, after an honest run."""
    made = Deployed(tmp_path_factory.mktemp("f"), [*SITES, "evil"]).ready()
    for name in SITES:
        made.site(name, rows)
    for standing in made.sites.values():
        standing.said("Connected")
    done = made.run("fedavg", "--sites", ",".join(SITES), *RUN)
    assert done.returncode == 0, done.stderr
    yield made
    made.end()


@pytest.fixture(scope="session")
def findings() -> Iterator[Findings]:
    made = Findings()
    yield made
    print("\n" + made.write(ROOT / "build" / "redteam.json"))
    if made.complete:
        made.write(BOUNDARIES)
