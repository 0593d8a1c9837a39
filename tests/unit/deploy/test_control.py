"""Flower's control interface and what the server's commands make of its answers."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from atoll.deploy import private_files
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.flower_adapter import private_names
from atoll.deploy.server import flower_control, processes
from atoll.deploy.server.flower_control import Control, RunStatus, Unreachable
from atoll.deploy.server.monitor import Book, going_on
from atoll.deploy.server.processes import Running
from atoll.deploy.supervisor import free_port
from atoll.deploy.transport.flower import write_app
from atoll.errors import AtollError

pytest.importorskip("flwr")


def control_with(**answers: Callable[[Any], Any]) -> Control:
    """A control whose client gives these answers, by name of the operation."""
    made = Control(free_port(), None, "token")
    made.close()
    made._client = SimpleNamespace(**answers)
    return made


def test_run_that_flower_does_not_start_is_an_error(tmp_path: Path) -> None:
    flower = control_with(StartRun=lambda request: SimpleNamespace(HasField=lambda name: False))

    with pytest.raises(AtollError, match="did not start the run"):
        flower.start(write_app(tmp_path / "app"), {})


def test_run_that_flower_does_not_stop_is_an_error() -> None:
    flower = control_with(StopRun=lambda request: SimpleNamespace(success=False))

    with pytest.raises(AtollError, match="could not stop run 7"):
        flower.stop(7)


def test_refusal_of_flower_is_an_error_with_its_status() -> None:
    def refuse(request: object) -> None:
        answer = httpx.Response(401, text="not JSON", request=httpx.Request("POST", "http://localhost"))
        answer.raise_for_status()

    with pytest.raises(AtollError, match="Flower refused: status 401"):
        control_with(StopRun=refuse).stop(7)


def test_server_that_does_not_answer_is_unreachable() -> None:
    with flower_control.connected(free_port(), None, "token") as flower, pytest.raises(Unreachable):
        flower.nodes()


def test_second_run_is_refused_with_the_place_of_the_first(tmp_path: Path) -> None:
    home = FederationDir(tmp_path)
    private_files.private_folder(home.state)
    book = Book(home)
    book.write(7, "runs/first")
    flower: Any = SimpleNamespace(
        runs=lambda: [RunStatus(8, "finished", "failed", ""), RunStatus(7, "running", "", "")]
    )

    assert going_on(flower, book, "runs/first") == 7
    with pytest.raises(AtollError, match="going on already, in runs/first"):
        going_on(flower, book, "runs/second")


def test_server_checks_its_flower_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private_names.PLACES, "gate", {"Moved": "flwr.proto.fleet_pb2"})

    with pytest.raises(AtollError, match=r"lacks flwr\.proto\.fleet_pb2\.Moved"):
        processes.serve(FederationDir(tmp_path / "none"), None, None, False, print)


@pytest.mark.parametrize("found", [None, Running(1, 2, "127.0.0.1", 3, True)])
def test_server_that_is_not_there_in_time_is_an_error(
    found: Running | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = FederationDir(tmp_path / "federation")
    home.create(["north"], ["localhost"], 8443, 30)
    monkeypatch.setattr(processes, "running", lambda directory: found)
    monkeypatch.setattr(processes, "answers", lambda port, ca: False)

    with pytest.raises(AtollError, match="No server of this federation"), processes.reached(home, timeouts=0.0):
        pass
