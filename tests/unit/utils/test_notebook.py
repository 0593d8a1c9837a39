"""Results as notebooks show them: short texts, small tables, figures, data frames."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.figure
import pytest

import atoll
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.experiments.comparison import Comparison, open_compare, run_compare
from atoll.experiments.sweep import Sweep, run_sweep
from atoll.inference.models import open_run
from atoll.utils import notebook

pytestmark = pytest.mark.usefixtures("module_without_report")
SHORT: dict[str, Any] = {"clients": 3, "rounds": 2, "rows": 300, "epochs": 1, "models": "mlp:hidden=8"}


@pytest.fixture(scope="module")
def result() -> Result:
    return atoll.run("fedavg", **SHORT)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, module_without_report: None) -> tuple[Path, Comparison]:
    folder = tmp_path_factory.mktemp("compared") / "both"
    return folder, run_compare(["local", "fedavg"], seeds=(0, 1), out=folder, **SHORT)


def test_result_has_repr_html_and_figures(result: Result) -> None:
    assert repr(result).startswith("<Result fedavg on digits: personal ")
    table = result.to_table()
    assert table["round"].to_pylist() == [1, 2]
    assert table["personal"].to_pylist() == [line["personal"]["post"]["accuracy"] for line in result.history]
    assert table["generic"].to_pylist() == [line["generic"]["global"]["accuracy"] for line in result.history]
    shown = result._repr_html_()
    assert f"<td>{result.history[-1]['personal']['post']['accuracy']:.4f}</td>" in shown
    assert shown.count("<tr>") == 2
    for kind in ("curves", "boxes", "holdings"):
        assert result.plot(kind).get_suptitle().endswith(": digits, dirichlet:0.5, 3 clients"), kind
    drawn: Any = result.plot().axes[0].get_lines()[0].get_ydata()
    assert list(drawn) == pytest.approx([100 * v for v in table["personal"].to_pylist()])
    with pytest.raises(AtollError, match=r"'curve' in plot\(\)"):
        result.plot("curve")


def test_parts_of_a_run_have_one_line_reprs(result: Result, tmp_path: Path) -> None:
    federation = result.setup.federation
    rows = [sum(len(part) for part in parts) for parts in (federation.train, federation.val, federation.test)]
    assert repr(federation) == (
        f"<Federation {federation.name} of digits: 3 clients, {rows[0]} samples to train, {rows[1]} to validate, "
        f"{rows[2]} to test>"
    )
    assert federation._repr_html_().count("<tr>") == 4
    assert len(federation.plot().axes) >= 1
    assert repr(federation.dataset).startswith("<Dataset digits: image samples of shape (1, 8, 8), 10 classes, ")
    assert repr(result.setup).startswith("<Setup fedavg, mlp:hidden=8 on <Federation ")
    atoll.run("local", out=tmp_path / "kept", **SHORT)
    assert repr(open_run(tmp_path / "kept", "last")) == "<SavedRun of local: 3 models of round 2>"


def test_a_comparison_ranks_methods_over_seeds(compared: tuple[Path, Comparison]) -> None:
    folder, made = compared
    table = made.to_table().to_pylist()
    assert {row["method"] for row in table} == {"local", "fedavg"}
    assert [row["seeds"] for row in table] == [2, 2]
    assert table[0]["best_by_val"] >= table[1]["best_by_val"]
    means = [run.summary["personal"]["best_by_val"] for run in made.runs if run.label == table[0]["method"]]
    assert table[0]["best_by_val"] == pytest.approx(sum(means) / 2)
    assert repr(made).startswith(f"<Comparison on digits: 2 methods, 2 seeds; {table[0]['method']} ")
    assert made._repr_html_().count("<tr>") == 4  # a heading, two methods, and the most frequent classes
    for kind in ("curves", "boxes", "bytes"):
        assert isinstance(made.plot(kind), matplotlib.figure.Figure)
    assert open_compare(folder).to_table().equals(made.to_table())
    with pytest.raises(AtollError, match=r"'lines' in plot\(\)"):
        made.plot("lines")


def test_comparison_without_out_leaves_no_files(tmp_path: Path) -> None:
    made = run_compare("local", **SHORT)
    assert len(made.rows) == 1
    assert not made.runs[0].path.exists()
    assert list(tmp_path.glob("runs*")) == []


def test_sweep_selects_by_validation_accuracy(tmp_path: Path) -> None:
    rounds: list[int] = []
    made = run_sweep("fedavg", {"lr": [0.01, 0.1]}, watch=lambda done, line: rounds.append(done), **SHORT)
    assert isinstance(made, Sweep)
    assert rounds == [1, 2, 1, 2]
    table = made.to_table().to_pylist()
    assert [row["lr"] for row in table] == [0.01, 0.1]
    assert made.best.val == max(row["val"] for row in table)
    assert repr(made).startswith(f"<Sweep over 2 points: best lr={made.best.point['lr']} (validation ")
    assert made._repr_html_().count("<tr>") == 3
    drawn = made.plot()
    (axes,) = drawn.axes
    assert drawn.get_suptitle() == "Accuracy against lr"
    assert axes.get_xlabel() == "lr"
    validation, test = axes.get_lines()
    assert validation.get_xdata().tolist() == test.get_xdata().tolist() == [0.01, 0.1]
    assert validation.get_ydata().tolist() == pytest.approx([100 * row["val"] for row in table])
    assert test.get_ydata().tolist() == pytest.approx([100 * row["test"] for row in table])
    assert made.plot("curves").axes[0].get_xlabel() == "round"
    with pytest.raises(AtollError, match="needs settings and their values"):
        run_sweep("fedavg", {})
    with pytest.raises(AtollError, match="model to choose by"):
        run_sweep("fedavg", {"lr": [1]}, by="test")


def test_to_dataframe_without_pandas_names_the_extra(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        def to_pandas(self) -> str:
            return "a frame"

    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert notebook.dataframe(Table()) == "a frame"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(AtollError, match="pip install pandas"):
        result.to_dataframe()


def test_html_escapes_names() -> None:
    assert "<td>a&lt;b&amp;c</td>" in notebook.html("title", ["name"], [["a<b&c"]])


def test_notebooks_show_a_bar_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, float]] = []

    class Bars(notebook.Progress):
        def stop(self) -> None:
            shown.extend((task.description, task.completed) for task in self.tasks)
            super().stop()

    monkeypatch.setattr(notebook, "is_notebook", lambda: True)
    monkeypatch.setattr(notebook, "Progress", Bars)

    run_compare(["local", "fedavg"], rounds=2, clients=2, rows=100)

    assert shown[:2] == [("local seed 0", 2), ("fedavg seed 0", 2)]


def test_nothing_is_shown_outside_of_notebooks(capsys: pytest.CaptureFixture[str]) -> None:
    atoll.run("local", rounds=1, clients=2, rows=100)

    assert capsys.readouterr() == ("", "")
