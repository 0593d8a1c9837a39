"""The models that a user gets are the models whose scores are in the tables, for every method."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.small_runs import resumed, setup
from torch import Tensor

from atoll.api import run_setup
from atoll.cli import main
from atoll.clients.evaluation import predict
from atoll.clients.pool import ClientPool
from atoll.core.hooks import PredictsOtherwise
from atoll.core.model import Predictor
from atoll.engine.result import Result
from atoll.inference.export import FORMATS, export_model
from atoll.inference.models import SavedRun, open_run
from atoll.methods import _registry

pytestmark = pytest.mark.usefixtures("module_without_report")
METHODS = sorted(_registry.methods())
# With a learning rate this high the last round is often not the best one. A third of the clients is absent.
UNSTEADY: dict[str, Any] = {"lr": 2.0, "rounds": 3, "eval_every": 1, "rate": 0.7}


def ran(name: str, folder: Path, **changes: Any) -> Result:
    return run_setup(setup(name, **UNSTEADY | changes, out=str(folder))).result


def score(predictor: Predictor | Any, pool: ClientPool, i: str) -> float:
    rows = pool.test[pool.position(i)]
    return pool.problem.score(predict(predictor, rows.x), rows.y)


def mean_score(models: Any, pool: ClientPool) -> float:
    return float(np.mean([score(models(i), pool, i) for i in pool.ids]))


def exported(saved: SavedRun, i: str, folder: Path) -> Any:
    manifest = export_model(saved, i, "safetensors", folder)
    assert manifest["measured"] is True
    fresh = saved.module(i)
    for parameter in fresh.parameters():
        torch.nn.init.zeros_(parameter)
    return FORMATS["safetensors"][2](folder / str(manifest["file"]), fresh)


def predicted_by_command(folder: Path, which: str, i: str, pool: ClientPool) -> float:
    shown = CliRunner().invoke(main, ["predict", str(folder), "--client", i, "--round", which, "--json"])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)
    guesses = Tensor([list(row["probabilities"].values()) for row in rows])
    return pool.problem.score(guesses, pool.test[pool.position(i)].y)


@pytest.mark.promise(
    "Models",
    "The mean test score of the models that `result.personal(i)`, `atoll predict` and `atoll export` give is the "
    "number in the table, for the last round and for the round that validation chose, for every method.",
)
@pytest.mark.parametrize("name", METHODS)
def test_models_of_the_best_and_last_round_have_the_scores_of_the_table(name: str, tmp_path: Path) -> None:
    result = ran(name, tmp_path / "run")
    personal, pool = result.summary["personal"], result.pool
    for which, wanted, number in (
        ("last", personal["final"], 3),
        ("best", personal["best_by_val"], personal["best_by_val_round"]),
    ):
        saved = open_run(tmp_path / "run", which)
        assert saved.model_round == number
        assert mean_score(lambda i, which=which: result.personal(i, which), pool) == wanted
        assert mean_score(saved.personal, pool) == wanted
        table = {row["client"]: row["accuracy"] for row in result.clients if row["round"] == number}
        assert predicted_by_command(tmp_path / "run", which, "1", pool) == table["1"]
        if not isinstance(result.setup.method, PredictsOtherwise):
            assert score(exported(saved, "2", tmp_path / which), pool, "2") == table["2"]


def test_in_some_runs_validation_chooses_another_round_than_the_last(tmp_path: Path) -> None:
    """Otherwise the test above would not tell ``best`` from ``last``."""
    for name in ("fednova", "ditto", "fedproto"):
        personal = ran(name, tmp_path / name).summary["personal"]
        assert personal["best_by_val_round"] < 3
        assert personal["best_by_val"] != personal["final"]


WAYS: list[dict[str, Any]] = [
    {"backend": "vmap"},
    {"backend": "processes", "workers": 2},
    {"store": "disk", "cache": 1},
    {"schedule": "buffered:2"},
    {"topology": "ring", "rate": 1.0},
    {"eval_every": 2},
    {"drop": "0.4"},
    {"poison": "0.4:scale"},
]
CASES = [(name, way) for name in ("fedavg", "ditto", "fedproto") for way in WAYS]
CASES += [("fedavg", {"dp": "8", "dp_seed": 1}), ("fedproto", {"dp": "8", "dp_seed": 1})]


@pytest.mark.promise(
    "Models",
    "Models have the scores of the table with loop, vmap and worker processes, states on disk, other schedules and "
    "topologies, dropped answers and differential privacy.",
)
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_models_have_the_scores_of_the_table_however_a_run_computes(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    result = ran(name, tmp_path / "run", **changes)
    personal, saved = result.summary["personal"], open_run(tmp_path / "run")
    for which, wanted in (("last", personal["final"]), ("best", personal["best_by_val"])):
        assert mean_score(lambda i, which=which: result.personal(i, which), result.pool) == wanted
    assert mean_score(saved.personal, result.pool) == personal["best_by_val"]


@pytest.mark.promise("Models", "Models have the scores of the table after a resume.")
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedproto"])
def test_models_have_the_scores_of_the_table_after_resume(name: str, tmp_path: Path) -> None:
    made = setup(name, **UNSTEADY, out=None)
    result = resumed(made, tmp_path / "run", done=2)
    personal = result.summary["personal"]
    assert mean_score(result.personal, result.pool) == personal["best_by_val"]
    assert mean_score(open_run(tmp_path / "run").personal, result.pool) == personal["best_by_val"]


def test_run_made_longer_forgets_the_evaluation_at_its_former_end(tmp_path: Path) -> None:
    """With an evaluation every two rounds, round 3 is evaluated only while the run has three rounds."""
    made = setup("fedavg", **UNSTEADY | {"eval_every": 2, "rounds": 4}, out=None)
    result = resumed(made, tmp_path / "run", done=3)
    personal = result.summary["personal"]
    assert personal["best_by_val_round"] in (2, 4)
    assert mean_score(result.personal, result.pool) == personal["best_by_val"]


@pytest.mark.promise("Models", "Models that do not fit into memory are kept on disk, bit for bit.")
def test_models_beyond_the_room_in_memory_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.engine.build.ROOM", 20_000)  # bytes: about one model
    result = ran("fedavg", tmp_path / "run")
    personal = result.summary["personal"]
    assert mean_score(result.personal, result.pool) == personal["best_by_val"]
    assert mean_score(lambda i: result.personal(i, "last"), result.pool) == personal["final"]
    assert not (tmp_path / "run" / "models").exists()  # The files of the process are gone.


@pytest.mark.promise("Models", "With `--keep-models no`, the commands say that they give another model.")
def test_without_kept_models_the_commands_say_what_they_give(tmp_path: Path) -> None:
    result = ran("fedavg", tmp_path / "run", keep_models=False)
    before = result.summary["personal_pre"]
    shown = CliRunner().invoke(main, ["predict", str(tmp_path / "run"), "--client", "1"])
    manifest = export_model(open_run(tmp_path / "run"), "1", "safetensors", tmp_path / "out")
    assert before is not None
    assert shown.exit_code == 0
    assert "before local training" in shown.stderr
    assert manifest["measured"] is False


def test_round_that_is_not_kept_is_refused_with_those_that_are(tmp_path: Path, refused: Any) -> None:
    ran("fedavg", tmp_path / "run")
    said = refused("predict", tmp_path / "run", "--client", "1", "--round", "7")
    assert "round 7 are not kept" in said
    assert "3 (last)" in said
    assert "--round must be best, last or the number" in refused("predict", tmp_path / "run", "--round", "first")
