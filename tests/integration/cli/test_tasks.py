"""Runs on numbers, several labels and text by command: tables, reports, predictions and models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes

from atoll.cli import main
from atoll.inference.models import open_run

COMMON = ["--partition", "iid", "--clients", "3", "--rounds", "2", "--epochs", "1", "--backend", "loop"]


def command(*words: str) -> Any:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 0, found.output
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    bunch = load_diabetes(scaled=False)
    header = ",".join([*bunch.feature_names, "progression"])
    np.savetxt(folder / "diabetes.csv", np.c_[bunch.data, bunch.target], delimiter=",", header=header, comments="")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    columns = np.c_[x, x[:, :2] > 0.2].astype(float)
    np.savetxt(folder / "ill.csv", columns, delimiter=",", header="a,b,c,fever,cough", comments="", fmt="%g")
    (folder / "poem.txt").write_text("the rose is red, the violet is blue. " * 60)
    return folder


@pytest.fixture(scope="module")
def numbers(folder: Path) -> Path:
    data, out = f"{folder}/diabetes.csv?label=progression", str(folder / "numbers")
    shown = command("run", "fedavg", "--data", data, "--task", "regression", "--out", out, *COMMON)
    assert "Scores: MSE, lower is better." in shown.output
    return folder / "numbers"


def test_predicted_numbers_are_in_the_unit_of_the_data(numbers: Path) -> None:
    """The targets run from 25 to 346, with mean 152."""
    rows = json.loads(command("predict", str(numbers), "--client", "0", "--json").stdout)

    found = [row["prediction"]["progression"] for row in rows]
    assert 25 < np.mean(found) < 346
    assert "progression" in command("predict", str(numbers), "--client", "0").output


def test_exported_model_returns_numbers_in_the_unit_of_the_data(numbers: Path, tmp_path: Path) -> None:
    manifests = command("export", str(numbers), "--client", "0", "--out", str(tmp_path), "--json").stdout
    saved = open_run(numbers)
    x = saved.pool.test[0].x

    assert json.loads(manifests)[0]["output"] == "numbers, one for each target"
    module = saved.module("0")
    (file,) = tmp_path.rglob("model.safetensors")
    module.load_state_dict(load_file(file))
    with torch.no_grad():
        torch.testing.assert_close(module(x), saved.personal("0")(x))


def test_new_clients_adapt_with_numbers_of_rows(numbers: Path, folder: Path) -> None:
    data = f"{folder}/diabetes.csv?label=progression"
    shown = command("adapt", str(numbers), "--data", data, "--shots", "5,all", "--out", str(folder / "adapted")).output

    assert "samples to train on" in shown
    assert "%" not in shown


def test_several_labels_are_predicted_with_probabilities(folder: Path) -> None:
    out = str(folder / "labels")
    data = f"{folder}/ill.csv?label=fever,cough"
    shown = command("run", "ditto", "--data", data, "--task", "multilabel", "--out", out, *COMMON).output
    rows = json.loads(command("predict", out, "--client", "1", "--json").stdout)

    assert "Scores: mAP in %, higher is better." in shown
    assert all(0 <= p <= 1 for row in rows for p in row["probabilities"].values())
    assert rows[0]["probabilities"].keys() == {"fever", "cough"}


def test_text_trains_a_language_model_whose_tied_weights_are_exported_once(folder: Path, tmp_path: Path) -> None:
    out = str(folder / "text")
    data = f"{folder}/poem.txt?length=16"
    shown = command("run", "fedavg", "--data", data, "--out", out, *COMMON).output
    command("export", out, "--client", "0", "--out", str(tmp_path))
    (file,) = tmp_path.rglob("model.safetensors")

    assert "Scores: perplexity, lower is better." in shown
    assert "next token" in command("predict", out, "--client", "0").output
    assert "body.embedding" in load_file(file)
    assert "head.weight" not in load_file(file)


def test_sweep_over_numbers_names_and_minimises_the_error(folder: Path) -> None:
    data = f"{folder}/diabetes.csv"
    shown = command(
        "sweep", "fedavg", "--grid", "lr=0.001,0.05", "--data", data, "--task", "regression", "--out",
        str(folder / "sweep"), *COMMON,
    ).output  # fmt: skip

    found = json.loads((folder / "sweep" / "sweep.json").read_text())
    assert "Chosen by personal validation MSE" in shown
    assert found["best"]["val"] == min(t["val"] for t in found["tried"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "80"], "--target must be above 0 and at most 1, not 80.0: accuracy is a share."),
        (["--task", "multilabel"], "divides samples by class, but labels are several labels"),
        (["--task", "regression", "--partition", "iid", "--min-class-count", "3"], "labels are numbers. Leave it out."),
        (["--task", "regression", "--partition", "iid", "--models", "lm"], "Model 'lm' cannot read table data."),
    ],
)
def test_options_that_do_not_suit_the_task_end_in_one_sentence(folder: Path, words: list[str], said: str) -> None:
    data = f"{folder}/ill.csv?label=" + ("fever,cough" if "multilabel" in words else "fever")

    found = CliRunner().invoke(main, ["run", "fedavg", "--data", data, "--clients", "3", *words])

    assert found.exit_code == 2
    assert said in found.output
