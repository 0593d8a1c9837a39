"""What users bring along: models, metrics, regularisers, partitions, by the file or from other packages."""

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Atoll
from markupsafe import Markup
from torch import Tensor, nn

from atoll import run
from atoll.clients import metrics
from atoll.config import Config
from atoll.data.loading import load
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods._factory import make
from atoll.report import pictures, table, table_export
from atoll.storage import run_reader

SHORT: dict[str, Any] = {"clients": 3, "rounds": 1, "rows": 300, "epochs": 1}
NETS = """
from torch import nn

class Wide(nn.Module):
    def __init__(self, num_classes, hidden=12):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, num_classes)

    def forward(self, x):
        return self.out(self.trunk(x))

def shaped(shape, num_classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 9), nn.ReLU(), nn.Linear(9, num_classes))

def soft():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))

def colour():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))

def number():
    return 7
"""
SCORES = """
def calibration(logits, labels):
    chance, guess = logits.softmax(1).max(1)
    return (chance - (guess == labels).float()).abs().mean()

def broken(logits, labels):
    return logits.nothing

def val(logits, labels):
    return 0.0
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "scores.py").write_text(SCORES)
    return tmp_path


def network(name: str, **options: Any) -> Any:
    return build_setup(Config(models=(name,), **SHORT | options)).pool.models["0"].net


# -- models -----------------------------------------------------------------------------------------------------------


def test_models_from_a_file_are_split_automatically(here: Path) -> None:
    wide = network("./nets.py:Wide")
    assert wide.head.weight.shape == (10, 12)
    assert network("./nets.py:Wide:hidden=20").head.weight.shape == (10, 20)
    assert network("./nets.py:shaped").head.weight.shape == (10, 9)
    assert network("./nets.py:Wide", width=5).head.weight.shape == (10, 5)
    assert network("./nets.py:Wide", method="feddw").head.bias is None  # it wants heads without bias
    same = network("./nets.py:Wide")
    assert all(torch.equal(a, b) for a, b in zip(wide.parameters(), same.parameters(), strict=True))  # by the seed


def test_models_from_a_file_run(here: Path, atoll: Atoll, without_report: None) -> None:
    options = ["--clients", "4", "--rounds", "1", "--rows", "300", "--epochs", "1", "--backend", "processes"]
    models = "./nets.py:Wide,./nets.py:Wide:hidden=20"
    told = atoll("run", "lgfedavg", "--models", models, "--width", "8", *options, "--out", here / "r", "--json")
    assert json.loads(told.stdout)["models"] == models.split(",")
    assert "checked" in atoll("export", here / "r", "--client", "1").stdout  # a run opened again finds them


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nets.py:soft", "changes the output of layer"),
        ("./nets.py:colour", r"cannot be used on samples of shape \(1, 8, 8\)"),
        ("./nets.py:number", "gives a int, not an nn.Module"),
        ("./nets.py:wide", "Did you mean 'Wide'"),
        ("./nets.py", "NAME is missing. Write ./nets.py:NAME"),
        ("./nets.py:Wide:depth=3", "cannot be used.*depth"),
        ("./missing.py:Wide", "no model file"),
    ],
)
def test_unsuitable_models_are_refused_with_the_reason(name: str, reason: str, here: Path) -> None:
    with pytest.raises(AtollError, match=reason):
        network(name)


class Classified(nn.Module):
    """As timm's networks are: the classifier, which has a name of its own, is not the last that was made."""

    def __init__(self, channels: int, num_classes: int):
        super().__init__()
        self.logits = nn.Linear(6, num_classes)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 6))

    def get_classifier(self) -> nn.Module:
        return self.logits

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.logits(self.features(x))
        return out


def test_timm_and_torchvision_models_are_created_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins with the two functions that are called: create_model of timm and get_model of torchvision.models."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.append((name, dict(options)))
        return Classified(options["in_chans"], options["num_classes"])

    def get_model(name: str, **options: Any) -> nn.Module:
        asked.append((name, dict(options)))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, options.get("num_classes", 1000)))

    timm, vision, models = ModuleType("timm"), ModuleType("torchvision"), ModuleType("torchvision.models")
    timm.create_model, models.get_model = create_model, get_model  # type: ignore[attr-defined]
    for module in (timm, vision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert network("timm:resnet18").head.weight.shape == (10, 6)
    assert network("torchvision:resnet18").head.weight.shape == (10, 5)
    assert network("torchvision:resnet18:weights=DEFAULT").head.weight.shape == (10, 5)  # its 1000 outputs are replaced
    assert asked == [
        ("resnet18", {"pretrained": False, "num_classes": 10, "in_chans": 1}),
        ("resnet18", {"weights": None, "num_classes": 10}),
        ("resnet18", {"weights": "DEFAULT"}),
    ]
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(AtollError, match="pip install timm"):
        network("timm:resnet18")


# -- metrics ----------------------------------------------------------------------------------------------------------


def calibration(logits: Tensor, labels: Tensor) -> float:
    chance, guess = logits.softmax(1).max(1)
    return float((chance - (guess == labels).float()).abs().mean())


def test_a_metric_of_a_file_is_in_tables_summary_and_report(
    here: Path, atoll: Atoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over clients of what the function gives for the logits and labels of their test rows."""
    monkeypatch.setattr(
        pictures, "draw_picture", lambda draw, name: pictures.Picture(Markup(), Markup())
    )  # drawing takes long
    where = ["--out", here / "r", "--metric", "./scores.py:calibration"]
    shown = atoll("run", "local", "--clients", "3", "--rounds", "1", "--rows", "300", "--epochs", "1", *where)
    assert "calibration" in shown.stdout
    summary = json.loads((here / "r" / "summary.json").read_text())
    result = run("local", metric=calibration, **SHORT)
    each = []
    for at, i in enumerate(result.pool.ids):
        x, y = result.pool.test[at]
        with torch.no_grad():
            each.append(calibration(result.personal(i)(x), y))
    assert result.table["calibration"].to_pylist() == pytest.approx(each)
    mean = pytest.approx(sum(each) / 3)
    assert result.summary["personal"]["metrics"]["final"]["calibration"] == mean
    assert summary["personal"]["metrics"]["final"]["calibration"] == mean
    page = (here / "r" / "report.html").read_text()
    assert f"{sum(each) / 3:.4g}" in page
    assert "<th>calibration</th>" in page
    sheet = table_export.sheet([run_reader.load(here / "r")])
    assert sheet.rows[0][sheet.columns.index(f"{table.OWN}: calibration")] == f"{sum(each) / 3:.4g}"


def test_failing_metric_is_refused_with_the_reason(here: Path) -> None:
    with pytest.raises(AtollError, match="Metric 'broken' failed on logits"):
        run("local", metric="./scores.py:broken", **SHORT)
    with pytest.raises(AtollError, match="cannot be called 'val'"):
        run("local", metric="./scores.py:val", **SHORT)
    with pytest.raises(AtollError, match="cannot be called 'accuracy'"):
        run("local", metric=named("accuracy"), **SHORT)
    with pytest.raises(AtollError, match="Unknown metric"):
        run("local", metric="sharpness", **SHORT)


def named(name: str) -> metrics.Metric:
    def metric(logits: Tensor, labels: Tensor) -> float:
        return 0.0

    metric.__name__ = name
    return metric


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with one module and the entry points given."""

    def install(points: str) -> None:
        (tmp_path / "scoring.py").write_text("def brier(logits, labels):\n    return 0.25\n")
        info = tmp_path / "scoring-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scoring\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[atoll.metrics]\n{points}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        metrics.load_installed_metrics.cache_clear()

    yield install
    monkeypatch.undo()
    sys.modules.pop("scoring", None)
    metrics.load_installed_metrics.cache_clear()


def test_other_packages_add_metrics(plugin: Callable[[str], None]) -> None:
    plugin("sharpness = scoring:brier")
    result = run("local", metric="sharpness", **SHORT)
    assert result.summary["personal"]["metrics"]["final"]["sharpness"] == 0.25


def test_a_broken_package_is_told_and_left_out(plugin: Callable[[str], None]) -> None:
    plugin("brier = scoring:missing")
    with pytest.warns(UserWarning, match="'brier' .* was left out"):
        assert metrics.load_installed_metrics() == {}


# -- regularisers -----------------------------------------------------------------------------------------------------


def test_regulariser_from_a_file_is_used(here: Path) -> None:
    term = "from dataclasses import dataclass\nfrom atoll.core.regularisers import Regulariser\n"
    term += "@dataclass(frozen=True)\nclass Shrink(Regulariser):\n    mu: float = 1.0\n"
    (here / "term.py").write_text(term)
    method: Any = make("fedavg", terms=["./term.py:mu=0.5"])
    assert [type(r).__name__ for r in method.regularisers] == ["Shrink"]
    assert next(iter(method.regularisers)).mu == 0.5
    (here / "none.py").write_text("")
    with pytest.raises(AtollError, match="must define exactly one Regulariser"):
        make("fedavg", terms=["./none.py"])


# -- partitions of FL-bench -------------------------------------------------------------------------------------------


def test_fl_bench_partition_file_is_read(tmp_path: Path) -> None:
    """Rows are counted through training and test part; a client without training rows is none."""
    count = len(load("digits").y_train)
    rows = [
        {"train": np.array([0, 2, 4]), "val": np.array([], dtype=np.int64), "test": np.array([6])},
        {"train": [1, 3], "val": [5], "test": [count - 1]},
        {"train": [], "val": [], "test": [8]},
    ]
    (tmp_path / "partition.pkl").write_bytes(
        pickle.dumps({"separation": {"train": [0, 1], "test": [2], "total": 3}, "data_indices": rows})
    )
    made = build_setup(Config(partition="file:partition.pkl", models=("linear",))).federation
    assert made.clients == ("0", "1")
    assert [part.tolist() for part in made.train] == [[0, 2, 4], [1, 3]]
    assert [part.tolist() for part in made.val] == [[], [5]]
    assert [part.tolist() for part in made.test] == [[6], [count - 1]]


def test_partition_pickle_with_other_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps({"data_indices": [Path("x")]}))
    with pytest.raises(AtollError, match=r"no partition\.pkl of FL-bench"):
        build_setup(Config(partition="file:partition.pkl"))
    with pytest.raises(AtollError, match="cannot be read"):
        build_setup(Config(partition="file:none.pkl"))
