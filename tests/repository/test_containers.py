"""The image and the compose file: a site's key and its rows are never in one container."""

import re
from typing import Any

import pytest
import yaml
from support.paths import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text())["services"]
SITES = ("north", "south", "west")


def mounted(service: str) -> set[str]:
    return {volume.split(":")[1] for volume in COMPOSE[service]["volumes"]}


@pytest.mark.parametrize("site", SITES)
def test_worker_has_no_key_and_no_network_and_the_connection_has_no_rows(site: str) -> None:
    worker, connection = f"{site}-worker", f"{site}-connection"

    assert COMPOSE[worker]["network_mode"] == "none"
    assert mounted(worker) == {"/site/site.yaml", f"/rows/{site}.npz", "/site/state", "/run/atoll"}
    assert mounted(connection) == {"/site/site.key", "/site/ca.crt", "/site/gate.yaml", "/run/atoll"}
    assert COMPOSE[worker]["user"] != COMPOSE[connection]["user"]


def test_only_the_server_publishes_a_port() -> None:
    assert [name for name, service in COMPOSE.items() if "ports" in service] == ["server"]


def test_everything_that_the_image_copies_exists() -> None:
    text = (ROOT / "containers" / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]]

    assert copied
    assert [word for word in copied if not (ROOT / word).exists()] == []
