"""Raw tables by command: runs, predictions for raw rows, exported models that read raw rows, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.hospital_tables import HEAD, write_folder, write_unlike

from atoll.api import run
from atoll.cli import main
from atoll.core.scores import accuracy
from atoll.engine.result import Result
from atoll.inference import export
from atoll.inference.models import open_run

pytestmark = pytest.mark.usefixtures("module_without_report")


def command(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


@pytest.fixture(scope="module", params=["all", "site"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_without_report: None
) -> tuple[Path, Result]:
    """Return the directory of a run, beside its data, and its result."""
    folder = tmp_path_factory.mktemp(request.param)
    data = f"{write_folder(folder / 'data')}?label=outcome"
    options: dict[str, Any] = {"partition": "natural", "rounds": 2, "standardise": request.param}
    return folder / "run", run("ditto", data, missing="indicator", out=folder / "run", **options)


def probabilities(*words: str) -> list[list[float]]:
    shown = command("predict", *words, "--json")
    assert shown.exit_code == 0, shown.output
    return [list(row["probabilities"].values()) for row in json.loads(shown.stdout)]


def test_predict_takes_the_raw_rows_of_a_table(trained: tuple[Path, Result], tmp_path: Path) -> None:
    """The lines of test rows, with columns in another order and without the label, get the scores of test rows."""
    folder, result = trained
    federation = result.setup.federation
    lines = (folder.parent / "data" / "south.csv").read_text().splitlines()[1:]
    before = sum(len(part[0]) for part in (federation.train, federation.val, federation.test))
    rows = [lines[row - before].split(",") for row in federation.test[1]]
    table = tmp_path / "new.csv"
    table.write_text("seen,colour,age,dose\n" + "".join(f"{r[3]},{r[2]},{r[0]},{r[1]}\n" for r in rows))

    found = probabilities(str(folder), str(table), "--client", "south")

    expected = result.personal("south")(result.pool.test[1].x).softmax(1)
    np.testing.assert_allclose(found, expected.detach(), atol=1e-6)


def test_predict_takes_raw_rows_of_a_numpy_file(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = trained
    raw, prepared = open_run(folder).test_rows("west")
    np.save(tmp_path / "rows.npy", raw.numpy())

    found = probabilities(str(folder), str(tmp_path / "rows.npy"), "--client", "west")

    np.testing.assert_allclose(found, result.personal("west")(prepared).softmax(1).detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("40,5,red,2015-01-01,well\n1000000,5,red,2015-01-01,well", "Row 1: column 'age' holds 1e+06"),
        ("40,30,red,1970-01-01,well", "the columns dose, seen lie more than 3 deviations"),
        ("old,5,red,2015-01-01,well", "new.csv line 2: column 'age' is a number, and the cell holds 'old'"),
        ("40,5,red,yesterday,well", "new.csv line 2: column 'seen' is a date"),
    ],
)
def test_predict_refuses_rows_of_another_type_or_scale(
    line: str, said: str, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(f"{HEAD}\n{line}\n")

    shown = command("predict", str(trained[0]), str(tmp_path / "new.csv"), "--client", "north")

    assert shown.exit_code == 2
    assert said in " ".join(shown.output.split())


def test_predict_names_a_missing_column(trained: tuple[Path, Result], tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,colour,seen\n40,red,2015-01-01\n")

    shown = command("predict", str(trained[0]), str(tmp_path / "new.csv"), "--client", "north")

    assert shown.exit_code == 2
    assert "has no column 'dose'" in " ".join(shown.output.split())


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_exported_model_reads_raw_rows(form: str, trained: tuple[Path, Result], tmp_path: Path) -> None:
    """Numbers in the units of the file, NaN for empty cells, the position in the manifest's list for a category."""
    folder = trained[0]

    manifest: Any = export.export_model(open_run(folder), "north", form, tmp_path)

    columns = manifest["input"]["preparation"]["columns"]
    assert [column["name"] for column in columns] == ["age", "dose", "colour", "seen"]
    assert (manifest["input"]["rows"], manifest["input"]["shape"]) == ("raw", [4])
    green = columns[2]["levels"].index("green")
    raw = torch.tensor([[40.0, float("nan"), green, 16000.0], [70.0, 4.0, float("nan"), 17000.0]], dtype=torch.float64)
    read = export.FORMATS[form][2](tmp_path / manifest["file"], torch.nn.Identity())
    saved = open_run(folder)
    with torch.no_grad():
        expected = saved.personal("north")(saved.prepared(raw.numpy(), "north"))
        torch.testing.assert_close(read(raw), expected, atol=1e-5, rtol=0)


def test_weights_alone_have_the_preparation_in_their_manifest(trained: tuple[Path, Result], tmp_path: Path) -> None:
    manifest: Any = export.export_model(open_run(trained[0]), "north", "safetensors", tmp_path)

    preparation = open_run(trained[0]).preparation("north")
    assert preparation is not None
    assert manifest["input"]["rows"] == "prepared"
    assert manifest["input"]["preparation"] == {"columns": preparation.to_json(), "inputs": preparation.inputs}


def test_predict_needs_the_columns_that_a_client_has_and_no_others(tmp_path: Path) -> None:
    data = f"{write_unlike(tmp_path / 'data')}?label=outcome"
    run("fedproto", data, rounds=1, columns="own", out=tmp_path / "run")
    (tmp_path / "new.csv").write_text("age,seen\n66,2015-01-01\n")

    assert len(probabilities(str(tmp_path / "run"), str(tmp_path / "new.csv"), "--client", "west")) == 1

    shown = command("predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--client", "south")
    assert shown.exit_code == 2
    assert "has no column 'colour'" in " ".join(shown.output.split())


def test_an_exported_model_on_own_columns_reads_raw_rows(tmp_path: Path) -> None:
    data = f"{write_unlike(tmp_path / 'data')}?label=outcome"
    run("local", data, rounds=1, columns="own", out=tmp_path / "run")
    for form in export.FORMATS:
        export.export_model(open_run(tmp_path / "run"), "west", form, tmp_path / form)


def test_new_clients_are_prepared_by_what_the_clients_agreed_on(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder = trained[0]
    west = folder.parent / "data" / "west.csv"

    shown = command("adapt", str(folder), "--data", f"{west}?label=outcome", "--out", str(tmp_path / "new"), "--quiet")

    assert shown.exit_code == 0, shown.output
    (found,) = probabilities(str(tmp_path / "new"), str(_one_row(tmp_path)))
    assert sum(found) == pytest.approx(1)


def _one_row(folder: Path) -> Path:
    (folder / "row.csv").write_text(f"{HEAD}\n66,5,grey,2015-01-01,well\n")
    return folder / "row.csv"


def test_scores_of_each_client_have_intervals_and_a_diagram(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = trained

    shown = command("scores", str(folder), "--draws", "20", "--out", str(tmp_path / "reliability.png"), "--json")

    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert [each["client"] for each in found] == ["north", "south", "west", "all rows"]
    logits = result.personal("north")(result.pool.test[0].x)
    assert found[0]["scores"]["accuracy"]["value"] == accuracy(logits, result.pool.test[0].y)
    assert sum(each["rows"] for each in found[:3]) == found[3]["rows"] == sum(bin["rows"] for bin in found[3]["bins"])
    assert all(s["low"] <= s["high"] for s in found[3]["scores"].values())
    overall = found[3]["scores"]["accuracy"]  # The calibration error of resamples is larger than that of the rows.
    assert overall["low"] <= overall["value"] <= overall["high"]
    assert (tmp_path / "reliability.png").read_bytes()[:4] == b"\x89PNG"
    assert "sensitivity" in command("scores", str(folder), "--draws", "2", "--point", "0.3").output
