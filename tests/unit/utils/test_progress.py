"""Bars are for people at a terminal: never in logs, never with --quiet."""

from pathlib import Path
from typing import Any

import pooch
import pytest
import rich.console
from conftest import Atoll

import atoll as package
from atoll.cli import console
from atoll.data import downloads
from atoll.utils import progress

SHORT = ("--clients", "3", "--rounds", "2", "--rows", "300", "--epochs", "1", "--backend", "loop")


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich.console.Console, "is_terminal", property(lambda self: True))


@pytest.mark.parametrize(
    "command", [("run", "local"), ("compare", "local", "fedavg"), ("sweep", "local", "--grid", "lr=0.1,0.2")]
)
def test_output_to_a_file_has_no_progress_bars(command: tuple[str, ...], atoll: Atoll, without_report: None) -> None:
    assert "━" not in atoll(*command, *SHORT, "--out", "r").stderr


def test_terminal_shows_bars_for_rounds_and_their_steps(
    atoll: Atoll, without_report: None, at_a_terminal: None
) -> None:
    shown = atoll("run", "fedavg", *SHORT, "--out", "r").stderr
    assert "fedavg seed 0" in shown
    assert "clients" in shown or "personal models" in shown
    assert "3/3" in shown
    later = atoll("adapt", "r", "--data", "digits", "--shots", "1,2").stderr
    assert "new clients" in later
    assert "2/2" in later
    assert "3/3" in atoll("export", "r").stderr


@pytest.mark.parametrize("command", [("run", "local"), ("compare", "local"), ("sweep", "local", "--grid", "lr=0.1")])
def test_quiet_commands_print_nothing(
    command: tuple[str, ...], atoll: Atoll, without_report: None, at_a_terminal: None
) -> None:
    done = atoll(*command, *SHORT, "--out", "r", "--quiet")
    assert (done.stdout, done.stderr) == ("", "")
    assert not progress.is_quiet()  # the next command is not


def test_observer_is_called_for_every_client() -> None:
    heard: list[tuple[str, int, int]] = []
    with progress.observed(lambda *step: heard.append(step)):
        package.run("fedavg", clients=3, rounds=1, rows=300, epochs=1, backend="loop")
    assert heard == [(what, done, 3) for what in ("clients", "personal models") for done in range(4)]
    assert list(progress.track("x", [1, 2], 2)) == [1, 2]
    assert len(heard) == 8  # No observer is set any more.


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the bars of downloads are drawn."""
    drawn: list[bool] = []

    def retrieve(url: str, *args: Any, downloader: Any) -> str:
        drawn.append(not downloader.progressbar.progress.disable)
        return "file"

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return drawn


def test_downloads_show_bars_on_a_terminal_unless_quiet(
    bars: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = downloads.File("x.gz", "https://example.org/x.gz", "0" * 32, 10)
    downloads.fetch(file, tmp_path)
    monkeypatch.setattr(rich.console.Console, "is_terminal", property(lambda self: True))
    downloads.fetch(file, tmp_path)
    with progress.quiet():
        downloads.fetch(file, tmp_path)
    assert bars == [False, True, False]


def test_working_message_appears_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with console.working("thinking"):
        pass
    assert capsys.readouterr().err == ""


def test_error_message_is_shown_without_bars(atoll: Atoll, at_a_terminal: None) -> None:
    done = atoll("run", "fedavg", *SHORT, "--models", "mlp,linear", "--out", "r", code=2)
    assert done.stderr.count("Error: ") == 1
