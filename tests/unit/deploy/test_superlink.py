"""Flower's control interface: no request passes without the server's own secret."""

from pathlib import Path
from typing import Any

import pytest

from atoll.deploy.flower_adapter.private_names import load
from atoll.deploy.server import superlink

pytest.importorskip("flwr")
Metadata = list[tuple[str, str]]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What checks the accounts of the SuperLink that a server starts, with the secret ``right``."""
    flower = load("superlink").flower_superlink
    monkeypatch.setattr(flower, "load_control_authn_plugin", flower.load_control_authn_plugin)  # put back afterwards
    monkeypatch.setattr(flower, "flower_superlink", lambda: None)
    monkeypatch.setattr("sys.argv", [])
    secret = tmp_path / "control.secret"
    secret.write_text("right")
    superlink.main(secret, ["--insecure"])
    return flower.load_control_authn_plugin()


def given(*tokens: str) -> Metadata:
    return [(load("superlink").ACCESS_TOKEN_KEY, token) for token in tokens]


def test_secret_of_the_server_is_accepted(plugin: Any) -> None:
    accepted, account = plugin.validate_tokens_in_metadata([("other", "entry"), *given("right")])

    assert accepted
    assert account is not None


@pytest.mark.parametrize("tokens", [(), ("",), ("wrong",), ("Right",), ("right", "right"), ("wrong", "right")])
def test_other_tokens_are_refused(tokens: tuple[str, ...], plugin: Any) -> None:
    assert plugin.validate_tokens_in_metadata(given(*tokens)) == (False, None)


def test_no_token_is_given_out_for_one_that_was_refused(plugin: Any) -> None:
    assert plugin.refresh_tokens(given("wrong")) == ([], None)
