"""Several labels and numbers between sites: the bits of the simulation, and errors that name the remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import small_runs
from support.local_sites import Sites, personal

from atoll.core.problems import Labels, Numbers
from atoll.deploy.server.reply_checks import BadReply, read_score
from atoll.deploy.site.config import read_site
from atoll.errors import AtollError

SHORT: dict[str, Any] = {
    "rows": None,
    "rounds": 2,
    "eval_every": 1,
    "epochs": 1,
    "batch_size": 8,
    "clients": 3,
    "partition": "iid",
}


def rows(folder: Path, task: str) -> str:
    """A file of 90 rows of 4 numbers with two labels each: signs of sums, or the sums themselves."""
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    y = x[:, :2] + x[:, 2:]
    np.savez(folder / "rows.npz", x=x, y=(y > 0).astype(np.float32) if task == "multilabel" else 3 * y)
    return str(folder / "rows.npz")


def options(folder: Path, task: str) -> dict[str, Any]:
    return {**SHORT, "data": rows(folder, task), "task": task, "models": ("mlp",)}


@pytest.mark.promise("Between machines", "Runs on several labels and on numbers equal the simulated ones, to the bit.")
@pytest.mark.parametrize("task", ["multilabel", "regression"])
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
@pytest.mark.parametrize("standardise", ["all", "no"])
def test_run_between_sites_equals_the_simulation(task: str, method: str, standardise: str, tmp_path: Path) -> None:
    changes = options(tmp_path, task) | {"standardise": standardise}
    sites = Sites(tmp_path / "sites", small_runs.setup(method, **changes))

    result, expected = sites.run(), small_runs.run(method, **changes)

    assert result.summary["digest"] == expected.summary["digest"]
    assert personal(result) == personal(expected)
    assert result.summary["task"] == task


def test_site_that_says_what_its_labels_are_reads_them_so(tmp_path: Path) -> None:
    rows(tmp_path, "regression")
    (tmp_path / "site.yaml").write_text("name: a\ndata: rows.npz\ntask: regression\n")

    found = read_site(tmp_path).rows.data

    assert found.problem.task == "regression"
    assert found.y_train.shape == (90, 2)


def test_unknown_task_of_a_site_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: a\ndata: rows.npz\ntask: next-token\n")

    with pytest.raises(AtollError, match=r"Unknown task 'next-token' in .*regression"):
        read_site(tmp_path)


def test_server_that_asks_for_another_task_is_told_that_of_the_sites(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", small_runs.setup("fedavg", **options(tmp_path, "regression")))

    with pytest.raises(AtollError, match="--task multilabel, but the labels of site '0' are of the task regression"):
        sites.run(config={"task": "multilabel"})


def test_bounds_of_scores_are_those_of_the_task() -> None:
    """A mean squared error may be above 1, a mean average precision may not."""
    assert read_score({"mse": 2.0}, 5, Numbers(1))["mse"] == 2.0
    with pytest.raises(BadReply):
        read_score({"map": 2.0}, 5, Labels(2))


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_default_privacy_rules_of_a_site_admit_models_of_labels_without_classes(task: str, tmp_path: Path) -> None:
    """The gate guards statistics of classes; there are none, and the model leaves as it does with classes."""
    changes = options(tmp_path, task)
    sites = Sites(tmp_path / "sites", small_runs.setup("fedavg", **changes))
    for name in sites.names:
        sites.write(name, privacy={"min_class_count": 10})

    result = sites.run()

    assert result.summary["digest"] == small_runs.run("fedavg", **changes).summary["digest"]
