"""The server's model of the best round, of the last one, and of others."""

from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.clients.evaluation import predict
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.inference.models import open_run
from benchmarks.digests import COMMON

# A rate that rises until training falls apart, so that validation chooses an early round on any machine.
UNSTEADY: dict[str, Any] = {
    **COMMON, "rounds": 6, "eval_every": 1, "lr": 3.0, "settings": {"optim.schedule": "warmup:6"}, "backend": "loop",
}  # fmt: skip


def accuracy(result: Result, predictor: Any) -> float:
    rows = result.pool.test.all
    return float((predict(predictor, rows.x).argmax(1) == rows.y).double().mean())


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("generic") / "run"
    return folder, atoll.run("fedavg", **UNSTEADY, out=folder)


def test_generic_model_is_the_one_behind_the_score_in_the_table(unsteady: tuple[Path, Result]) -> None:
    folder, result = unsteady
    table = result.summary["generic"]
    best = int(table["best_by_val_round"])
    assert best not in (0, 6)  # else best and last would be the same model

    for opened in (result, open_run(folder)):
        assert accuracy(result, opened.generic()) == pytest.approx(table["best_by_val"])
        assert accuracy(result, opened.generic(round=best)) == pytest.approx(table["best_by_val"])
        assert accuracy(result, opened.generic(round="last")) == pytest.approx(table["final"])
    assert accuracy(result, open_run(folder, round="last").generic()) == pytest.approx(table["final"])


def test_round_that_is_not_kept_is_refused_with_those_that_are(unsteady: tuple[Path, Result]) -> None:
    folder, result = unsteady
    other = next(t for t in range(1, 6) if t != result.summary["generic"]["best_by_val_round"])

    for opened in (result, open_run(folder)):
        with pytest.raises(AtollError, match=f"round {other} are not kept. The run has those of round 6 .last. and"):
            opened.generic(round=other)


def test_resumed_run_keeps_the_best_model_of_its_first_part(unsteady: tuple[Path, Result], tmp_path: Path) -> None:
    _, whole = unsteady
    first = {**UNSTEADY, "rounds": int(whole.summary["generic"]["best_by_val_round"]) + 1, "checkpoint_every": 1}
    atoll.run("fedavg", **first, out=tmp_path / "part")

    resumed = atoll.run("fedavg", **{**first, "rounds": 6}, out=tmp_path / "part", resume=True)

    x = whole.pool.test.all.x
    assert resumed.summary["generic"] == whole.summary["generic"]
    assert torch.equal(predict(resumed.generic(), x), predict(whole.generic(), x))


def test_run_that_keeps_no_models_has_the_last_one_alone() -> None:
    result = atoll.run("fedavg", **UNSTEADY, keep_models=False)

    x = result.pool.test.all.x
    assert result.kept_server is None
    assert torch.equal(predict(result.generic(), x), predict(result.generic(round="last"), x))


def test_kept_state_of_the_server_outlives_older_checkpoints(unsteady: tuple[Path, Result]) -> None:
    folder, result = unsteady

    names = [path.name for path in sorted((folder / "checkpoints").iterdir())]

    assert all(int(name[-6:]) > result.summary["generic"]["best_by_val_round"] for name in names)
