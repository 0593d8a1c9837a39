"""Whatever a user gets wrong: exit code 2, one message that says what and where, no traceback, nothing damaged."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import AtollError, run
from atoll.methods.fedavg import FedAvg

pytestmark = pytest.mark.usefixtures("without_report")
Atoll = Callable[..., Any]
Refused = Callable[..., str]
QUICK = ("--rows", 300, "--clients", 3, "--rounds", 2, "--epochs", 1)
TABLE = "a,b,label\n" + "".join(f"{i},{i * i % 7},{i % 3}\n" for i in range(90))
TEXTS = "text,label\n" + "".join(f"word{i % 5} and word{i % 7},{i % 2}\n" for i in range(60))


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "Unknown method 'nobody'"),
        (["nobody.py"], "There is no method file 'nobody.py'"),
        (["fedavg", "--data", "nothing"], "Unknown data set 'nothing'"),
        (["fedavg", "--data", "nothing.csv"], "no file or folder 'nothing.csv'"),
        (["fedavg", "--data", "folder/nothing"], "no file or folder 'folder/nothing'"),
        (["fedavg", "--nonsense", "3"], "No such option"),
        (["fedavg", "local"], "unexpected extra argument"),
        (["fedavg", "--rounds", "-3"], "--rounds must be at least 1, not -3"),
        (["fedavg", "--rounds", "many"], "'many' is not a valid integer"),
        (["fedavg", "--rate", "0"], "--rate must be above 0 and at most 1, not 0.0"),
        (["fedavg", "--rate", "1.5"], "--rate must be above 0 and at most 1, not 1.5"),
        (["fedavg", "--rate", "nan"], "--rate must be a number"),
        (["fedavg", "--lr", "-1"], "--lr must be above 0"),
        (["fedavg", "--epochs", "0"], "--epochs must be above 0"),
        (["fedavg", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["fedavg", "--clients", "0"], "--clients must be at least 1"),
        (["fedavg", "--clients", "100000"], "100"),
        (["fedavg", "--workers", "0"], "--workers"),
        (["fedavg", "--clock", "sped=1e9"], "Did you mean 'speed'?"),
        (["fedavg", "--clock", "speed=fast"], "speed must be a number, not 'fast'"),
        (["fedavg", "--target", "90"], "--target must be above 0 and at most 1"),
        (["fedavg", "--seeds", "0,x"], "--seeds cannot be '0,x': SEED must be a whole number"),
        (["fedavg", "--seeds", ""], "--seeds cannot be '': SEED is missing"),
        (["fedavg", "--seeds", "1,1"], "planned twice"),
        (["fedavg", "--partition", "pathological:11"], "11"),
        (["fedavg", "--partition", "pathological:0"], "pathological"),
        (["fedavg", "--partition", "dirichlet:-1"], "dirichlet"),
        (["fedavg", "--partition", "dirichlet:x"], "dirichlet"),
        (["fedavg", "--partition", "natural"], "natural"),
        (["fedavg", "--partition", "file:nothing.json"], "nothing.json"),
        (["fedavg", "--public", "5000"], "public"),
        (["fedavg", "--models", "bilstm"], "Model 'bilstm' cannot read image data"),
        (["fedavg", "--models", "mlp:hidden=0"], "hidden"),
        (["fedavg", "--models", "mlp:hidden"], "--models cannot be 'mlp:hidden': 'hidden' has no name and '='"),
        (["fedavg", "--models", ","], "--models must be a list of names"),
        (["fedavg", "--models", "mlp,linear"], "For fedavg, all clients need one architecture"),
        (["fedproto", "--models", "lenet,cnn1"], "one feature width"),
        (["pfedes", "--proxy", "eight"], "--proxy cannot be 'eight': FILTERS must be a whole number of at least 1"),
        (["pfedes", "--proxy", "0"], "--proxy cannot be '0'"),
        (["fedavg", "--set", "optim.lr"], "--set cannot be 'optim.lr': 'optim.lr' has no name and '='"),
        (["fedavg", "--set", "optim.lr=quick"], "fedavg.optim.lr must be a number"),
        (["ditto", "--set", "lam=-1"], "lam is -1"),
        (["local", "--with", "dw"], "local takes no regularisers"),
        (["fedprox", "--with", "proximal"], "the same regulariser twice"),
        (["--config", "nothing.yaml"], "There is no configuration file 'nothing.yaml'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_a_message(words: list[str], said: str, refused: Refused) -> None:
    assert said in refused("run", *words, "--out", "run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg", "--models", "cnn1", "--data", "table.csv"], "Model 'cnn1' cannot read table data"),
        (["fedavg", "--models", "mlp", "--data", "texts.csv"], "Model 'mlp' cannot read text data"),
        (["pfedes", "--data", "table.csv"], "A proxy needs images"),
        (["fedavg", "--data", "texts.csv", "--models", "bilstm", "--backend", "vmap"], "vmap cannot batch bilstm"),
        (["fedavg", "--data", "table.csv?label=c"], "'c'"),
        (["fedavg", "--data", "table.csv", "--split", "official"], "official"),
        (["fedavg", "--data", "table.csv?lable=a"], "Did you mean 'label'?"),
    ],
)
def test_models_that_do_not_fit_the_data_are_refused(words: list[str], said: str, refused: Refused) -> None:
    Path("table.csv").write_text(TABLE)
    Path("texts.csv").write_text(TEXTS)
    assert said in refused("run", *words, "--clients", 2, "--partition", "iid", "--out", "run")
    assert not Path("run").exists()


# -- files ------------------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> None:
    good = {"x": np.ones((40, 4), dtype=np.float32), "y": np.arange(40) % 2}
    np.savez("data.npz", **{**good, **arrays})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": np.arange(39) % 2}, "40 samples but 39 labels"),
        ({"x": np.full((40, 4), np.nan, dtype=np.float32)}, "NaN"),
        ({"x": np.zeros((40, 1, 4, 2, 2), dtype=np.float32)}, "shape"),
        ({"x": np.zeros(40, dtype=np.float32)}, "shape"),
        ({"x": np.zeros((0, 4), dtype=np.float32), "y": np.zeros(0, dtype=np.int64)}, "samples"),
        ({"y": np.arange(40) % 2, "classes": np.array(["only"])}, "class"),
        ({"y": np.full(40, np.nan)}, "label"),
        ({"x": np.array([["a"]] * 40)}, "Store numbers"),
    ],
)
def test_malformed_arrays_are_refused(arrays: dict[str, Any], said: str, refused: Refused) -> None:
    npz(**arrays)
    message = refused("run", "fedavg", "--data", "data.npz", "--clients", 2, "--partition", "iid", "--out", "run")
    assert said in message
    assert "data.npz" in message
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("data.npz", b"no zip at all"), ("data.npz", b""), ("data.csv", b""), ("data.csv", b"\xff\xfe\x00"),
        ("data.csv", b"a,label\n1,x,3\n"), ("data.csv", b"a,label\ninf,1\n2,0\n"), ("data.parquet", b"PAR1"),
        ("data.xyz", b"?"),
    ],
)  # fmt: skip
def test_unreadable_data_files_are_refused(name: str, data: bytes, refused: Refused) -> None:
    Path(name).write_bytes(data)
    message = refused("run", "fedavg", "--data", name, "--clients", 2, "--partition", "iid", "--out", "run")
    assert name in message
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds: [1", "not readable YAML"),
        ("", "must contain entries"),
        ("ruonds: 3", "Did you mean 'rounds'?"),
        ("rounds: many", "--rounds must be a whole number, not 'many'"),
        ("rounds: true", "--rounds must be a whole number"),
        ("rounds: .inf", "--rounds must be a whole number"),
        ("seed: x", "--seed must be a whole number"),
        ("settings: 3", "--set must be name=value pairs"),
        ("settings: [lam=1]", "--set must be name=value pairs"),
        ("terms: 3", "--with must be a list of names"),
        ("terms: [dw, {a: 1}]", "--with must be a list of names"),
        ("models: {a: 1}", "--models must be a list of names"),
        ("method: [fedavg]", "method"),
        ("method: !!python/name:os.system x", "not readable YAML"),
        ("out: [a]", "--out must be text"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--set", "optim.lr=0.1", "--with", "proximal")])
def test_unusable_configuration_files_are_refused(
    text: str, said: str, more: tuple[str, ...], refused: Refused
) -> None:
    Path("c.yaml").write_text(text)
    for words in (["run"], ["run", "fedavg"], ["compare", "fedavg", "local"], ["audit", "fedavg"]):
        assert said in refused(*words, "--config", "c.yaml", *more)
    assert not Path("runs").exists()


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["a_file", "a_file/below", "/proc/nowhere"])
def test_unwritable_run_directories_are_refused(out: str, refused: Refused) -> None:
    Path("a_file").write_text("mine")
    assert f"Cannot write to the run directory '{out}'" in refused("run", "fedavg", *QUICK, "--out", out)
    assert Path("a_file").read_text() == "mine"


def test_report_of_a_missing_run_is_refused(refused: Refused) -> None:
    assert "No run in nothing" in refused("report", "nothing")
    Path("empty").mkdir()
    assert "No run in empty" in refused("report", "empty")
    Path("half").mkdir()
    Path("half/config.yaml").write_text("method: fedavg\n")
    assert "not finished" in refused("report", "half")


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(atoll: Atoll) -> Path:
    atoll("run", "ditto", *QUICK, "--rounds", 3, "--checkpoint-every", 1, "--out", "run", "--quiet")
    return Path("run")


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def test_damaged_checkpoint_is_skipped_with_a_note(finished: Path, atoll: Atoll) -> None:
    good = json.loads((finished / "summary.json").read_text())["digest"]
    damage(finished / "checkpoints" / "round-000003" / "server.safetensors")
    result = atoll("run", "--resume", finished, "--json")
    assert "Note: Checkpoint round-000003 is damaged" in result.stderr
    assert json.loads(result.stdout)["digest"] == good
    assert atoll("run", "--resume", finished, "--quiet").stderr == ""  # it has healed


@pytest.mark.parametrize("name", ["server.safetensors", "progress.json", "states.json", "manifest.json"])
def test_resume_without_intact_checkpoint_deletes_nothing(name: str, finished: Path, refused: Refused) -> None:
    for folder in (finished / "checkpoints").iterdir():
        damage(folder / name)
    before = content(finished)
    assert "start again with --force" in refused("run", "--resume", finished)
    assert content(finished) == before


def test_damaged_configuration_of_a_run_is_refused(finished: Path, refused: Refused) -> None:
    (finished / "config.yaml").write_text("rounds: [")
    before = content(finished)
    assert "config.yaml' is not readable YAML" in refused("run", "--resume", finished)
    assert "config.yaml' is not readable YAML" in refused("run", "ditto", *QUICK, "--out", finished, "--resume")
    assert content(finished) == before


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_run_on_a_full_disk_can_be_resumed(atoll: Atoll, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a while: every write counts, and the one after that fails, wherever it is."""
    words = ("run", "ditto", *QUICK, "--rounds", 4, "--rate", 0.7, "--checkpoint-every", 1, "--store", "disk")
    atoll(*words, "--out", "whole", "--quiet")
    whole = json.loads(Path("whole/summary.json").read_text())["digest"]
    write, left = os.write, [0]

    def full(handle: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")
        return write(handle, data)

    for room in (0, 5, 14, 30):
        shutil.rmtree("run", ignore_errors=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            left[0] = room
            message = refused(*words, "--out", "run")
        assert "No space left on device: 'some file'" in message
        assert "continue with --resume" in message
        assert not Path("run/summary.json").exists()
        atoll(*words, "--out", "run", "--resume", "--quiet")
        assert json.loads(Path("run/summary.json").read_text())["digest"] == whole


# -- from Python ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ruonds": 3}, "Did you mean 'rounds'?"),
        ({"rounds": "many"}, "rounds must be a whole number"),
        ({"method": "fedavgg"}, "Did you mean 'fedavg'?"),
        ({"method": FedAvg(), "lr": 0.1}, "lr would change nothing: set it in FedAvg"),
        ({"method": FedAvg(), "settings": {"optim.lr": 0.1}}, "settings would change nothing"),
        ({"resume": True, "force": True, "out": "run"}, "Give one of them"),
    ],
)
def test_python_calls_raise_the_errors_of_the_command_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(AtollError) as caught:
        run(**options)
    assert said in str(caught.value)
