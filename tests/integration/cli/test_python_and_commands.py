"""Python calls and commands leave the same files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from markupsafe import Markup

import atoll as package
from atoll import run, run_compare, run_paper, run_sweep
from atoll.config import Config
from atoll.engine import python_parts
from atoll.engine.setup import Setup, build_setup
from atoll.experiments import papers, planning, runner
from atoll.report import figures, pictures

Atoll = Callable[..., Any]
QUICK: dict[str, Any] = {"rows": 300, "clients": 3, "rounds": 2, "epochs": 1, "models": ["mlp:hidden=8"]}
WORDS = ("--rows", 300, "--clients", 3, "--rounds", 2, "--epochs", 1, "--models", "mlp:hidden=8", "--quiet")
RECIPE = {
    "title": "A table",
    "options": {"data": "digits", "clients": 3, "rounds": 1, "epochs": 1, "models": ["mlp:hidden=8"]},
    "cases": {"few": {"partition": "iid"}},
    "methods": {"Alone": "local", "Ours": "fedavg"},
    "claims": ["Ours > Alone"],
    "scales": {"smoke": {}},
}
TIMES = re.compile(r'("?\b(seconds|run_seconds|started|ended|pid|time)"?: )[^,\n]*')


@pytest.fixture(autouse=True)
def plain_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take long to draw; pages and files are written all the same."""
    monkeypatch.setattr(
        pictures, "draw_picture", lambda draw, name: pictures.Picture(Markup("<svg></svg>"), Markup("<svg></svg>"))
    )
    monkeypatch.setattr(figures, "DEFAULT_KINDS", ("curves",))
    monkeypatch.setattr(figures, "ENDINGS", (".svg",))


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def digest_of(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["digest"])


def without_times(text: str, root: str) -> str:
    """What a file says but for durations and the name of its folder."""
    return TIMES.sub(r"\1", text).replace(root, "ROOT")


def assert_same(*names: str) -> None:
    """The directories ``by-python`` and ``by-command`` hold the same files; those named say the same."""
    assert files(Path("by-python")) == files(Path("by-command"))
    for name in names:
        mine, other = (without_times(Path(root, name).read_text(), root) for root in ("by-python", "by-command"))
        assert mine == other, name


def test_run_writes_the_files_of_atoll_run(atoll: Atoll) -> None:
    run("fedavg", "digits", out="by-python", **QUICK)
    atoll("run", "fedavg", *WORDS, "--out", "by-command")

    assert_same("config.yaml", "holdings.json")
    assert "report.html" in files(Path("by-python"))
    assert digest_of(Path("by-python")) == digest_of(Path("by-command"))


def test_run_compare_writes_the_files_of_atoll_compare(atoll: Atoll) -> None:
    found = run_compare(["local", "fedavg"], "digits", seeds=[0, 1], out="by-python", **QUICK)
    atoll("compare", "local", "fedavg", *WORDS, "--seeds", "0,1", "--out", "by-command")

    assert_same("figures/curves.svg")
    assert {"report.html", "figures/curves.svg", "local-seed0/report.html"} <= files(Path("by-python"))
    assert [one.summary["digest"] for one in found.runs] == [
        digest_of(Path("by-command", f"{name}-seed{seed}")) for name in ("local", "fedavg") for seed in (0, 1)
    ]


def test_run_compare_without_out_leaves_no_files() -> None:
    run_compare(["local"], "digits", **QUICK)

    assert files(Path()) <= {name for name in files(Path()) if name.startswith("cache/")}


def test_run_sweep_writes_the_files_of_atoll_sweep(atoll: Atoll) -> None:
    found = run_sweep("fedprox", {"mu": [0, 10]}, "digits", out="by-python", **QUICK)
    atoll("sweep", "fedprox", "--grid", "mu=0,10", *WORDS, "--out", "by-command")

    assert_same("sweep.json", "sweep.csv")
    assert {"report.html", "sweep.json", "sweep.csv"} <= files(Path("by-python"))
    assert json.loads(Path("by-command/sweep.json").read_text())["best"]["point"] == found.best.point


def test_run_paper_writes_the_files_of_atoll_paper_run(atoll: Atoll, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("shelf")
    (folder / "paper").mkdir(parents=True)
    (folder / "paper" / "table.yaml").write_text(yaml.safe_dump(RECIPE))
    monkeypatch.setattr(papers, "recipes_dir", lambda: folder)

    found = run_paper("paper/table", "smoke", out="by-python")
    atoll("paper", "run", "paper/table", "--scale", "smoke", "--quiet", "--out", "by-command")

    assert_same("results.json", "results.md", "results.csv", "results.tex")
    assert {"report.html", "figures/curves.svg", "results.json"} <= files(Path("by-python"))
    assert found.document == json.loads(Path("by-python/results.json").read_text())
    (title,) = [sheet.title for sheet in found.sheets]  # and no verdict at this scale
    assert title.startswith("few (run on digits")
    assert repr(found) == "<PaperResult paper/table at scale smoke: 2 runs in by-python>"
    assert found._repr_html_().count("<table") == 1


def test_every_public_name_can_be_imported() -> None:
    assert {"run", "run_compare", "run_sweep", "run_paper", "PaperResult"} <= set(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)


@pytest.mark.parametrize("words", [("run", "fedavg"), ("compare", "local", "fedavg")])
def test_a_command_sets_up_each_run_once(words: tuple[str, ...], atoll: Atoll, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(config: Config, *data: Any, **objects: Any) -> Setup:
        built.append(config.method)
        return build_setup(config, *data, **objects)

    for module in (python_parts, planning, runner):
        monkeypatch.setattr(module, "build_setup", build)

    atoll(*words, *WORDS, "--out", "here")

    assert built == [*words[1:]]
