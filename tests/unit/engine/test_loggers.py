"""Runs told to other programs; whatever these do, the run is the same."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from atoll.api import run
from atoll.config import Config
from atoll.engine import loggers
from atoll.errors import AtollError
from atoll.utils import plugins

SHORT: dict[str, Any] = {"rows": 300, "clients": 3, "rounds": 2, "epochs": 1, "models": "mlp:hidden=16"}
heard: list[Any] = []


class Listener:
    def __init__(self, config: Config, folder: Path):
        heard.append(("start", config.method, folder.name))

    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        heard.append(("line", step, numbers))

    def close(self) -> None:
        heard.append(("close",))


class Broken(Listener):
    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        super().line(step, numbers)
        raise ConnectionError("no network")


class Stillborn(Listener):
    def __init__(self, config: Config, folder: Path):
        raise RuntimeError("no licence")


@pytest.fixture(autouse=True)
def _listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    for name, kind in (("listener", Listener), ("broken", Broken), ("stillborn", Stillborn)):
        monkeypatch.setitem(loggers.TRACKERS, name, (kind, "json", name))


def test_tracker_receives_every_evaluated_round(tmp_path: Path, without_report: None) -> None:
    result = run("fedavg", out=tmp_path / "run", track=["listener"], **SHORT)
    assert heard[0] == ("start", "fedavg", "run")
    assert [event[1] for event in heard if event[0] == "line"] == [1, 2]
    assert heard[-1] == ("close",)
    assert heard[1][2]["personal/post/accuracy"] == result.history[0]["personal"]["post"]["accuracy"]


def test_tracker_receives_the_series_of_each_client(tmp_path: Path, without_report: None) -> None:
    result = run("fedavg", out=tmp_path / "run", track=["listener"], **SHORT)

    lines = [event[2] for event in heard if event[0] == "line"]
    last = {row["client"]: row["accuracy"] for row in result.clients if row["round"] == 2}
    assert {i: lines[1][f"client/{i}/accuracy"] for i in last} == last
    assert len(last) == 3


def test_thousands_of_clients_have_no_series(
    tmp_path: Path, without_report: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "MOST_CLIENTS", 2)
    run("fedavg", out=tmp_path / "run", track=["listener"], **SHORT)

    assert "personal/post/accuracy" in heard[1][2]
    assert not [name for name in heard[1][2] if name.startswith("client/")]


def test_failing_tracker_does_not_stop_run(tmp_path: Path, without_report: None) -> None:
    plain = run("fedavg", out=tmp_path / "plain", **SHORT)
    result = run("fedavg", out=tmp_path / "run", track=["broken", "stillborn", "listener"], **SHORT)
    assert result.summary["digest"] == plain.summary["digest"]
    assert len([event for event in heard if event[0] == "line"]) == 1 + 2  # the broken one is asked once
    assert [note for note in result.notes if "broken" in note and "no network" in note]
    assert [note for note in result.notes if "stillborn" in note and "no licence" in note]


def test_only_numbers_are_logged() -> None:
    line = {
        "round": 3,
        "personal": {"post": {"accuracy": 0.5, "auc": float("nan")}},
        "generic": None,
        "participants": ["0"],
    }
    assert loggers.flatten_metrics(line) == {"round": 3.0, "personal/post/accuracy": 0.5}


def test_missing_tracker_is_refused_before_run(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="tensorboard"):
        run("fedavg", out=tmp_path / "run", track=["tensorbord"], **SHORT)
    loggers.TRACKERS["listener"] = (Listener, "no_such_package_anywhere", "thing")
    with pytest.raises(AtollError, match="pip install thing"):
        run("fedavg", out=tmp_path / "run", track=["listener"], **SHORT)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_tracker_of_an_installed_package_is_used(
    tmp_path: Path, without_report: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("mine", f"{__name__}:Listener", "atoll.trackers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "atoll.trackers" else [])
    loggers.installed_trackers.cache_clear()

    run("fedavg", out=tmp_path / "run", track=["mine"], **SHORT)
    loggers.installed_trackers.cache_clear()

    assert [event[0] for event in heard] == ["start", "line", "line", "close"]
