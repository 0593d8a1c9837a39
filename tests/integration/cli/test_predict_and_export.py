"""The models of a run in use: predictions, and models for other programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from atoll.api import run
from atoll.cli import main
from atoll.cli.predict import truth_of
from atoll.core.problems import Labels, NextToken, Numbers, Problem
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.inference import export
from atoll.inference.models import open_run

pytestmark = pytest.mark.usefixtures("module_without_report")
SHORT: dict[str, Any] = {"rows": 300, "clients": 3, "rounds": 2, "epochs": 1, "models": "mlp:hidden=16"}


@pytest.fixture(scope="module")
def ditto(tmp_path_factory: pytest.TempPathFactory, module_without_report: None) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("use") / "ditto"
    return folder, run("ditto", out=folder, **SHORT)


def command(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize("name", ["ditto", "fedproto", "fedpd", "fedapen"])
def test_opened_run_gives_the_same_predictions(name: str, tmp_path: Path) -> None:
    more: dict[str, Any] = (
        {"public": 30, "server_model": "mlp", "settings": {"server.epochs": 1}} if name == "fedpd" else {}
    )
    result = run(name, out=tmp_path / name, **SHORT, **more)
    saved = open_run(tmp_path / name)
    for i in saved.clients:
        x = result.pool.test[result.pool.position(i)].x
        assert torch.equal(saved.personal(i)(x), result.personal(i)(x))


def test_module_gives_the_predictions_of_the_client_model(ditto: tuple[Path, Result]) -> None:
    saved, x = open_run(ditto[0]), ditto[1].pool.test[1].x
    with torch.no_grad():
        assert torch.equal(saved.module("1")(x), saved.personal("1")(x))


def test_predict_classifies_an_image_file(ditto: tuple[Path, Result], tmp_path: Path) -> None:
    """The picture of a training row, enlarged without smoothing, is that row again once it is read."""
    folder, result = ditto
    data = result.setup.federation.dataset
    row = data.x_train[5][0]
    Image.fromarray(row).save(tmp_path / "digit.png")
    shown = command("predict", str(folder), str(tmp_path / "digit.png"), "--client", "1", "--json")
    assert shown.exit_code == 0, shown.output
    (found,) = json.loads(shown.stdout)
    with torch.no_grad():
        expected = result.personal("1")(open_run(folder).prepared(data.x_train[5:6])).softmax(1)[0]
    assert list(found["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-6)


def test_predict_says_when_an_image_is_converted(ditto: tuple[Path, Result], tmp_path: Path) -> None:
    Image.new("RGB", (28, 20), (200, 150, 250)).save(tmp_path / "scan.png")

    shown = command("predict", str(ditto[0]), str(tmp_path / "scan.png"), "--client", "1")

    assert shown.exit_code == 0
    assert "scan.png has 28 x 20 pixels with 3 channels; it was converted to 8 x 8 with 1" in shown.stderr


def test_predict_accepts_raw_rows_and_test_rows(ditto: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = ditto
    np.save(tmp_path / "rows.npy", result.setup.federation.dataset.x_train[:4])
    found = json.loads(command("predict", str(folder), str(tmp_path / "rows.npy"), "--client", "0", "--json").stdout)
    assert len(found) == 4
    assert all(sum(p["probabilities"].values()) == pytest.approx(1) for p in found)
    own = json.loads(command("predict", str(folder), "--client", "0", "--json").stdout)
    assert len(own) == result.pool.test.size(0)


def test_predictions_of_test_rows_show_the_true_class_beside(ditto: tuple[Path, Result]) -> None:
    folder, result = ditto
    expected = [result.setup.federation.dataset.classes[y] for y in result.pool.test[0].y]

    own = json.loads(command("predict", str(folder), "--client", "0", "--json").stdout)
    shown = command("predict", str(folder), "--client", "0", "--top", "2").stdout.splitlines()

    assert [row["true"] for row in own] == expected
    assert shown[0].split() == ["row", "true", "class", "class", "2nd"]
    assert shown[1].split()[:4] == ["test", "row", "0", expected[0]]


@pytest.mark.parametrize(
    ("problem", "y", "classes", "expected"),
    [
        (Numbers(2), [[1.5, 2.0]], ("price", "days"), [{"price": 1.5, "days": 2.0}]),
        (Labels(3), [[1, 0, 1]], ("a", "b", "c"), [["a", "c"]]),
        (NextToken(3, 3), [[0, 1, 2]], ("x", "y", "z"), ["z"]),
    ],
)
def test_truth_of_other_tasks(problem: Problem, y: list[Any], classes: tuple[str, ...], expected: list[Any]) -> None:
    assert truth_of(problem, torch.tensor(y), classes) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--client", "0"], "config.yaml"),
        (["RUN", "--client", "9"], "client"),
        (["RUN", "missing.png", "--client", "0"], "missing.png"),
        (["RUN", "wrong.npy", "--client", "0"], "shape"),
        (["RUN", "pickled.npy", "--client", "0"], "pickled.npy"),
    ],
)
def test_wrong_predict_and_export_options_are_refused(
    words: list[str], said: str, ditto: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.zeros((2, 3)))
    np.save("pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    shown = command("predict", *(str(ditto[0]) if w == "RUN" else w for w in words))
    assert shown.exit_code == 2
    assert said in shown.output


@pytest.mark.promise("Models", "An exported file predicts what the model predicts.")
@pytest.mark.parametrize("form", export.FORMATS)
def test_an_exported_model_predicts_the_same(form: str, ditto: tuple[Path, Result], tmp_path: Path) -> None:
    shown = command("export", str(ditto[0]), "--client", "2", "--form", form, "--out", str(tmp_path), "--json")
    assert shown.exit_code == 0, shown.output
    (manifest,) = json.loads(shown.stdout)
    folder = Path(manifest["folder"])
    kept = json.loads((folder / export.MANIFEST).read_text())
    assert kept["checked"]["rows"] == ditto[1].pool.test.size(2)
    assert kept["classes"] == [str(i) for i in range(10)]
    read = export.FORMATS[form][2](folder / kept["file"], open_run(ditto[0]).module("0"))
    federation, x = ditto[1].setup.federation, ditto[1].pool.test.all.x
    raw = torch.from_numpy(federation.rows(np.concatenate(federation.test)))
    assert kept["input"]["rows"] == ("prepared" if form == "safetensors" else "raw")
    with torch.no_grad():
        given = x if form == "safetensors" else raw
        assert torch.equal(read(given).argmax(1), ditto[1].personal("2")(x).argmax(1))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.full((2, 1, 8, 8), 0.5), "The samples are float64, but the models were trained on uint8"),
        (np.full((2, 1, 8, 8), 16, dtype=np.uint8), "The values of the images reach 16"),
        (np.full((2, 1, 8, 8), 300), "The values of the images reach 300"),
    ],
)
def test_predict_refuses_images_of_another_type_or_scale(
    rows: Any, said: str, ditto: tuple[Path, Result], tmp_path: Path
) -> None:
    """The pixels of the digits reach 255 in a file of bytes, and the file of scikit-learn has floats up to 16."""
    np.save(tmp_path / "rows.npy", rows)
    shown = command("predict", str(ditto[0]), str(tmp_path / "rows.npy"), "--client", "0")
    assert shown.exit_code == 2
    assert said in " ".join(shown.output.split())


def test_export_refuses_a_file_with_other_predictions(
    ditto: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, write, _ = export.FORMATS["safetensors"]
    monkeypatch.setitem(export.FORMATS, "safetensors", (name, write, lambda path, net: lambda x: net(x) + 1))
    with pytest.raises(AtollError, match="differ"):
        export.export_model(open_run(ditto[0]), "0", "safetensors", tmp_path)
    assert not (tmp_path / export.MANIFEST).exists()


def test_convolutions_with_statistics_are_exported(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 255, (60, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", x=rows, y=np.arange(60) % 2)
    run("fedavg", str(tmp_path / "small.npz"), "feddw_fmnist", clients=2, rounds=1, epochs=1, out=tmp_path / "run")
    for form in export.FORMATS:
        export.export_model(open_run(tmp_path / "run"), "0", form, tmp_path / form)


def test_module_of_a_method_with_several_models_is_refused(tmp_path: Path) -> None:
    run("fedproto", out=tmp_path / "run", **SHORT)
    with pytest.raises(AtollError, match="predict"):
        open_run(tmp_path / "run").module("0")


def test_export_writes_a_model_card_with_the_score(atoll: Callable[..., Any]) -> None:
    atoll("run", "fedavg_ft", "--rows", 300, "--clients", 3, "--rounds", 2, "--out", "run", "--quiet")
    atoll("export", "run", "--client", "1", "--out", "models")

    card = Path("models/1/safetensors/README.md").read_text()
    rows = pq.read_table("run/clients.parquet").to_pylist()
    chosen = json.loads(Path("models/1/safetensors/manifest.json").read_text())["round"]
    (score,) = [row["accuracy"] for row in rows if (row["client"], row["round"]) == ("1", chosen)]
    assert f"test samples: {score:.2%}." in card
    assert "trained by\nfedavg_ft" in card
