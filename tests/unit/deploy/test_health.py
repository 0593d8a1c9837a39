"""Probes of a site: whether its server and its worker answer."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.deployed_federation import free_port

from atoll.deploy.site.health import SILENCE, Health, serve_health
from atoll.deploy.site.worker import _listener
from atoll.deploy.transport.protocol import Frame, pack, receive


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """A worker that answers every request."""
    path = tmp_path / "w"
    listener = _listener(path, 0o600)

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                receive(connection)
                connection.sendall(pack(Frame("name", {"site": "north"})))

    threading.Thread(target=answer, daemon=True).start()
    yield path
    listener.close()


def probe(health: Health, path: str = "/health") -> tuple[int, Any]:
    server = serve_health(health, f"127.0.0.1:{free_port()}")
    host, port = server.server_address[:2]
    try:
        with urllib.request.urlopen(f"http://{host!s}:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as reason:
        return reason.code, json.loads(reason.read() or "null")
    finally:
        server.shutdown()
        server.server_close()


def test_site_is_healthy_while_server_and_worker_answer(socket: Path) -> None:
    status, report = probe(Health(socket))

    assert (status, report["server"], report["worker"]) == (200, True, True)


def test_site_without_a_worker_is_not_healthy(tmp_path: Path) -> None:
    status, report = probe(Health(tmp_path / "none"))

    assert (status, report["server"], report["worker"]) == (503, True, False)


def test_site_that_has_not_heard_from_its_server_is_not_healthy(socket: Path) -> None:
    now = [0.0]
    health = Health(socket, lambda: now[0])
    now[0] = SILENCE + 1

    assert probe(health)[0] == 503
    health.hear()
    assert probe(health)[0] == 200


def test_worker_that_trains_for_long_counts_as_healthy(tmp_path: Path) -> None:
    now = [0.0]
    health = Health(tmp_path / "none", lambda: now[0])
    health.working = True
    now[0] = 10 * SILENCE

    assert probe(health)[0] == 200


def test_other_paths_are_not_found(socket: Path) -> None:
    assert probe(Health(socket), "/state") == (404, None)
