"""What a run depends on is recorded and checked: the calling program changes nothing, other conditions are named."""

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll.api import run
from atoll.errors import AtollError
from atoll.inference.models import open_run

pytestmark = pytest.mark.usefixtures("module_without_report")
SHORT: dict[str, Any] = {"rows": 200, "clients": 3, "rounds": 1, "epochs": 1, "models": "cnn_a"}


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def low_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.fixture(scope="module")
def digest() -> str:
    return str(run("fedavg", **SHORT).summary["digest"])


@pytest.mark.promise(
    "Repeatability",
    "Default type and device, precision, autocast, inference mode and oneDNN of the calling program change no bit "
    "of a run.",
)
@pytest.mark.parametrize(
    "setting",
    [
        default_dtype(),
        low_precision(),
        default_device(),
        torch.device("meta"),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode(),
        torch.no_grad(),
        torch.backends.mkldnn.flags(enabled=False),
    ],
    ids=["dtype", "precision", "device", "device-context", "autocast", "inference", "no-grad", "onednn"],
)
def test_settings_of_the_calling_program_change_no_bit_and_are_restored(
    setting: AbstractContextManager[object], digest: str
) -> None:
    def settings() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_float32_matmul_precision(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.backends.mkldnn.enabled,
        )

    with setting:
        before = settings()
        assert run("fedavg", **SHORT).summary["digest"] == digest
        assert settings() == before


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on a table that is named by a relative path, in the folder ``here``."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _write_table(seed=0)
    run("fedavg", "table.csv", clients=2, partition="iid", rounds=1, epochs=1, out="run")
    return tmp_path / "here" / "run"


def _write_table(seed: int) -> None:
    draws = np.random.default_rng(seed)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'}" for a, b in draws.normal(size=(60, 2))]
    Path("table.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")


@pytest.mark.promise("Repeatability", "`config.yaml` repeats a run from any folder, to the same digest.")
def test_configuration_of_a_run_repeats_it_from_another_folder(
    table: Path, tmp_path: Path, atoll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    atoll("run", "--config", table / "config.yaml", "--out", tmp_path / "again", "--quiet")
    first, second = (json.loads((path / "summary.json").read_text()) for path in (table, tmp_path / "again"))
    assert first["digest"] == second["digest"]
    assert atoll("predict", table, "--client", "0").exit_code == 0


def test_run_is_resumed_from_another_folder(
    table: Path, tmp_path: Path, atoll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    atoll("run", "--resume", table, "--rounds", 2, "--quiet")
    assert json.loads((table / "summary.json").read_text())["rounds"] == 2


@pytest.mark.promise(
    "Repeatability", "Data that changed since a run are refused by `--config`, `--resume`, `predict` and `export`."
)
@pytest.mark.parametrize("command", ["run --config", "predict", "export", "run --resume"])
def test_data_that_changed_since_the_run_are_noticed(table: Path, command: str, refused: Any) -> None:
    _write_table(seed=1)
    words = {
        "run --config": ("run", "--config", table / "config.yaml", "--out", "again"),
        "predict": ("predict", table, "--client", "0"),
        "export": ("export", table),
        "run --resume": ("run", "--resume", table, "--rounds", 2),
    }[command]
    said = refused(*words)
    assert "are not what they were" in said
    assert "remove data_digest" in said


def test_other_data_on_the_command_line_replace_those_of_the_configuration(table: Path, atoll: Any) -> None:
    shutil.move("table.csv", "other.csv")
    _write_table(seed=1)
    atoll("run", "--config", table / "config.yaml", "--data", "table.csv", "--out", "again", "--quiet")


@pytest.mark.promise(
    "Repeatability",
    "`environment.json` names packages, processor, instruction set, data, settings, command line and date of every "
    "session.",
)
def test_environment_file_names_the_conditions_of_every_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/atoll", "run", "fedavg"])
    run("fedavg", rows=200, clients=2, rounds=1, out=tmp_path / "run")
    run("fedavg", rows=200, clients=2, rounds=2, out=tmp_path / "run", resume=True)
    first, second = json.loads((tmp_path / "run" / "environment.json").read_text())["sessions"]
    assert (first["first_round"], second["first_round"]) == (1, 2)
    assert first["machine"]["torch"] == torch.__version__
    assert first["machine"]["instruction set"] == torch.backends.cpu.get_cpu_capability()
    assert first["machine"].keys() >= {"atoll", "numpy", "python", "processor"}
    assert first["data"]["digest"] == open_run(tmp_path / "run").config.data_digest
    assert first["settings"]["optim.lr"] > 0
    assert first["date"] <= second["date"]
    assert first["command"] == "atoll run fedavg"


@pytest.mark.promise(
    "Repeatability", "A run that is resumed or repeated with other packages or on another processor says so."
)
def test_run_that_is_resumed_or_repeated_under_other_conditions_says_so(tmp_path: Path, atoll: Any) -> None:
    folder = tmp_path / "run"
    run("fedavg", rows=200, clients=2, rounds=1, out=folder)
    stored = json.loads((folder / "environment.json").read_text())
    stored["sessions"][0]["machine"]["torch"] = "1.0"
    (folder / "environment.json").write_text(json.dumps(stored))
    repeated = atoll("run", "--config", folder / "config.yaml", "--out", tmp_path / "again", "--quiet")
    resumed = run("fedavg", rows=200, clients=2, rounds=2, out=folder, resume=True)
    for said in (repeated.stderr, " ".join(resumed.notes)):
        assert f"torch 1.0 before, {torch.__version__} now" in said
    assert not run("fedavg", rows=200, clients=2, rounds=3, out=folder, resume=True).notes


def test_digest_of_other_data_is_refused_in_python(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="are not what they were"):
        run("fedavg", "digits", data_digest="0" * 12)
