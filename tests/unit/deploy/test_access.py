"""Rules of access: operations that pass the proxy, and keys that are accepted."""

from pathlib import Path
from typing import Any

import pytest

from atoll.deploy import pki
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.flower_adapter.fleet import HEALTH, OPERATIONS, PUBLIC_KEY_HEADER
from atoll.deploy.server import access

OPERATION = "/v1/fleet/pull-messages"


@pytest.fixture
def home(tmp_path: Path) -> FederationDir:
    made = FederationDir(tmp_path / "federation")
    made.create(["north", "south"], ["localhost"], 8443, 30)
    return made


def key_of(home: FederationDir, name: str) -> str:
    return pki.header(home.read().sites[name].key.encode())


@pytest.mark.parametrize(
    "name",
    ["activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
     "pull-object", "confirm-message-received"],
)  # fmt: skip
def test_operations_of_sites_pass(name: str) -> None:
    access.check_path("POST", f"/v1/fleet/{name}")


@pytest.mark.deploy
def test_every_operation_of_installed_flower_is_classified() -> None:
    """A new operation of Flower must be allowed or refused here on purpose."""
    from flwr.superlink.routers.fleet.router import router

    paths: set[Any] = {getattr(route, "path", None) for route in router.routes}
    refused = {f"/v1/fleet/{name}" for name in ("register-node", "unregister-node", "get-run", "get-fab")}
    assert paths == OPERATIONS | refused


@pytest.mark.deploy
def test_key_header_equals_that_of_installed_flower() -> None:
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    assert PUBLIC_KEY_HEADER == FLEET_HTTP_PUBLIC_KEY_HEADER


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/control/start-run"), ("POST", "/v1/control/register-node"), ("POST", "/v1/runtime/acquire-task"),
        ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/"), ("POST", "/"), ("POST", "*"), ("POST", ""),
        ("POST", "/v1/fleet/nonsense"), ("POST", "/v1/fleet/get-run"), ("POST", "/v1/fleet/get-fab"),
        ("POST", "/v1/fleet/register-node"), ("POST", "/v1/fleet/unregister-node"),
        ("GET", "/v1/fleet/pull-messages"), ("PUT", "/v1/fleet/pull-messages"), ("CONNECT", "localhost:80"),
        ("POST", "/health"), ("HEAD", "/health"), ("GET", "/health/"), ("GET", "/health?x=1"), ("GET", "//health"),
        ("POST", "/v1/fleet/../control/start-run"), ("POST", "/v1/fleet/..%2fcontrol/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"), ("POST", "/v1/fleet//v1/control/start-run"),
        ("POST", "/v1/fleet/pull-messages/../../control/start-run"), ("POST", "/v1/fleet/pull-messages?x=/v1/control"),
        ("POST", "/v1/fleet/pull-messages#x"), ("POST", "/v1/fleet/pull-messages;x"), ("POST", "/v1/fleet/"),
        ("POST", "/v1/FLEET/pull-messages"), ("POST", "/V1/fleet/pull-messages"), ("POST", "/v1/fleet/Pull-Messages"),
        ("POST", "/v1/fleet/pull-messages/"), ("POST", "/v1/fleet/pull-messages\n"), ("POST", "/v1/fleet\\pull"),
        ("POST", "https://localhost/v1/fleet/pull-messages"), ("POST", "/v1/fleetx/pull-messages"),
        ("POST", " /v1/fleet/pull-messages"), ("post", "/v1/fleet/pull-messages"),
    ],
)  # fmt: skip
def test_other_paths_and_methods_are_refused(method: str, target: str) -> None:
    with pytest.raises(access.Refusal) as refusal:
        access.check_path(method, target)
    assert refusal.value.status == 403


def test_revoked_key_is_refused_at_once(home: FederationDir) -> None:
    checker = access.KeyChecker(home)
    north, south = key_of(home, "north"), key_of(home, "south")
    checker.check_key(OPERATION, north)
    home.revoke("north")
    checker.check_key(OPERATION, south)
    for key in (north, None, "", "x", north + "="):
        with pytest.raises(access.Refusal) as refusal:
            checker.check_key(OPERATION, key)
        assert refusal.value.status == 401


def test_health_check_refuses_a_revoked_key_and_needs_none(home: FederationDir) -> None:
    checker = access.KeyChecker(home)
    checker.check_key(HEALTH, None)
    checker.check_key(HEALTH, key_of(home, "north"))
    home.revoke("north")
    with pytest.raises(access.Refusal, match="revoked"):
        checker.check_key(HEALTH, key_of(home, "north"))
