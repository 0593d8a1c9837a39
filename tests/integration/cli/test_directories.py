"""Directories of runs and comparisons: nothing is overwritten unasked, and what a command says to resume resumes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from atoll.api import run_setup
from atoll.engine.setup import Setup
from atoll.experiments import runner
from atoll.report import figures, html

Atoll = Callable[..., Any]
Refused = Callable[..., str]
WRITE = html.write_runs  # as it is before the tests replace it
QUICK = ("--rows", 200, "--clients", 3, "--rounds", 2, "--epochs", 1)


@pytest.fixture(autouse=True)
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(runs: Sequence[Any], path: Path) -> Path:
        path.write_text(" ".join(run.label for run in runs))
        return path

    monkeypatch.setattr(html, "write_runs", write)
    monkeypatch.setattr(figures, "DEFAULT_KINDS", ())


@pytest.mark.parametrize("more", [(), ("--force",), ("--resume",)])
def test_run_is_refused_in_the_directory_of_a_comparison(more: tuple[str, ...], atoll: Atoll, refused: Refused) -> None:
    atoll("compare", "local", "fedavg", *QUICK, "--out", "both", "--quiet")

    message = refused("run", "fedavg", *QUICK, "--out", "both", *more)

    assert "holds the runs of another command (fedavg-seed0, local-seed0)" in message
    assert Path("both/report.html").read_text() == "local fedavg"
    assert not Path("both/config.yaml").exists()


def test_comparison_is_refused_in_the_directory_of_a_run(atoll: Atoll, refused: Refused) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "one", "--quiet")

    assert "holds a single run" in refused("compare", "local", *QUICK, "--out", "one", "--force")

    assert Path("one/report.html").read_text() == "fedavg"


def test_other_comparison_is_refused_where_a_report_is(atoll: Atoll, refused: Refused) -> None:
    atoll("compare", "local", *QUICK, "--out", "both", "--quiet")

    assert "already holds runs with their report" in refused("compare", "fedavg", *QUICK, "--out", "both")
    assert "already holds runs with their report" in refused(
        "sweep", "ditto", "--grid", "lam=1,2", *QUICK, "--out", "both"
    )

    assert Path("both/report.html").read_text() == "local"


def test_run_is_refused_where_another_report_is(refused: Refused) -> None:
    Path("other").mkdir()
    Path("other/report.html").write_text("my own page")

    assert "is not the report of a run" in refused("run", "fedavg", *QUICK, "--out", "other")

    assert Path("other/report.html").read_text() == "my own page"


@pytest.mark.parametrize("command", [("run",), ("compare",)])
def test_interrupted_runs_of_several_seeds_resume_by_their_directory(command: tuple[str], atoll: Atoll) -> None:
    """The second run had not begun when the first was interrupted, so no directory names it."""
    atoll("run", "fedavg", *QUICK, "--seeds", "0,1", "--out", "runs/whole", "--quiet")
    whole = json.loads(Path("runs/whole/fedavg-seed1/summary.json").read_text())["digest"]
    Path("runs/whole/report.html").unlink()
    second = Path("runs/whole/fedavg-seed1")
    for path in sorted(second.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    second.rmdir()
    Path("runs/whole").rename("moved")

    result = atoll(*command, "--resume", "moved", "--json")

    assert [summary["seed"] for summary in json.loads(result.stdout)] == [0, 1]
    assert json.loads(Path("moved/fedavg-seed1/summary.json").read_text())["digest"] == whole
    assert not Path("runs/whole").exists()


def test_advice_after_an_interrupt_names_a_command_that_works(atoll: Atoll, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []

    def interrupt_second(setup: Setup, **how: Any) -> Any:
        begun.append(setup)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run_setup(setup, **how)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_setup", interrupt_second)
        stopped = atoll("run", "fedavg", *QUICK, "--seeds", "0,1", "--out", "a b", code=130)

    assert "continue with `atoll run --resume 'a b'`" in stopped.stderr
    atoll("run", "--resume", "a b", "--quiet")

    assert Path("a b/fedavg-seed1/summary.json").exists()


def test_advice_after_an_interrupt_before_the_first_run_names_the_plan(
    atoll: Atoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_setup", interrupt)
        stopped = atoll("run", "fedavg", *QUICK, "--seeds", "0,1", "--out", "soon", code=130)

    assert "No round was finished; the plan is in soon: continue with `atoll run --resume soon`" in stopped.stderr
    atoll("run", "--resume", "soon", "--quiet")
    assert Path("soon/fedavg-seed1/summary.json").exists()


def test_advice_after_an_early_interrupt_says_that_nothing_is_saved(
    atoll: Atoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "build_setup", interrupt)

    stopped = atoll("run", "fedavg", *QUICK, "--out", "early", code=130)

    assert "Nothing was saved" in stopped.stderr
    assert not Path("early").exists()


def test_directory_without_runs_cannot_be_resumed(refused: Refused) -> None:
    Path("empty").mkdir()

    assert "there is nothing to resume" in refused("run", "--resume", "empty")
    assert "there is nothing to resume" in refused("compare", "--resume", "empty")


@pytest.mark.parametrize("several", [("--seeds", "0,1"), ("--splits", 2)])
def test_one_seed_and_several_are_refused(several: tuple[str | int, ...], refused: Refused) -> None:
    assert f"--seed and {several[0]} exclude each other" in refused("run", "fedavg", *QUICK, "--seed", 3, *several)


def test_export_of_an_unknown_client_names_the_known_ones(atoll: Atoll, refused: Refused) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "one", "--quiet")

    assert "Unknown client '99'. Known: 0, 1, 2." in refused("export", "one", "--client", "99")


def test_comparison_is_resumed_with_more_methods_but_not_with_fewer(atoll: Atoll, refused: Refused) -> None:
    atoll("compare", "local", "fedavg", *QUICK, "--out", "both", "--quiet")

    message = refused("compare", "local", "fedprox", *QUICK, "--out", "both", "--resume")

    assert "also holds fedavg-seed0, which this command does not run" in message
    assert Path("both/report.html").read_text() == "local fedavg"
    assert "also holds" in refused("sweep", "ditto", "--grid", "lam=1,2", *QUICK, "--out", "both", "--resume")
    atoll("compare", "local", "fedavg", "fedprox", *QUICK, "--out", "both", "--resume", "--quiet")
    assert Path("both/report.html").read_text() == "local fedavg fedprox"


def test_recipe_is_refused_in_the_directory_of_other_runs(atoll: Atoll, refused: Refused) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "one", "--quiet")
    atoll("compare", "local", *QUICK, "--out", "both", "--quiet")
    Path("other").mkdir()
    Path("other/results.json").write_text('{"recipe": "scd/table1"}')

    for root in ("one", "both", "other"):
        assert "dcpfl/figure2 would replace the report" in refused(
            "paper", "run", "dcpfl/figure2", "--scale", "smoke", "--out", root
        )

    assert Path("one/report.html").read_text() == "fedavg"


def test_new_clients_get_a_folder_of_their_own(atoll: Atoll, refused: Refused) -> None:
    atoll("run", "fedavg", *QUICK, "--new-clients", 1, "--out", "runs/host", "--quiet")
    atoll("adapt", "runs/host", "--new-clients", "--shots", "1", "--out", "later", "--quiet")
    before = Path("later/adapt.json").read_text()

    for folder in ("runs/host", "runs"):
        assert "holds runs" in refused("adapt", "runs/host", "--new-clients", "--out", folder, "--force")
    assert "already holds models" in refused("adapt", "runs/host", "--new-clients", "--shots", "2", "--out", "later")

    assert not Path("runs/host/adapt.json").exists()
    assert Path("later/adapt.json").read_text() == before
    atoll("adapt", "runs/host", "--new-clients", "--shots", "2", "--out", "later", "--force", "--quiet")
    assert Path("later/adapt.json").read_text() != before


# -- reports and tables -----------------------------------------------------------------------------------------------


@pytest.fixture
def with_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports as they are, without figures."""
    monkeypatch.setattr(html, "write_runs", WRITE)


def test_report_is_drawn_again_over_that_of_the_same_runs(atoll: Atoll, with_drawing: None) -> None:
    atoll("run", "fedavg", *QUICK, "--seeds", "0,1", "--out", "both", "--quiet")
    first = Path("both/report.html").read_text()

    atoll("report", "both")
    atoll("report", "both/fedavg-seed0", "--out", "one.html")
    atoll("report", "both", "--out", "one.html")  # with more runs than before

    assert Path("both/report.html").read_text() == first
    assert "fedavg-seed1" in Path("one.html").read_text()


def test_report_of_other_runs_is_kept_unless_it_is_to_be_replaced(
    atoll: Atoll, refused: Refused, with_drawing: None
) -> None:
    atoll("run", "fedavg", *QUICK, "--seeds", "0,1", "--out", "both", "--quiet")
    first = Path("both/report.html").read_text()

    message = refused("report", "both/fedavg-seed0", "--out", "both/report.html")

    assert "is the report of other runs (fedavg-seed1). Add --force to replace it" in message
    assert Path("both/report.html").read_text() == first
    atoll("report", "both/fedavg-seed0", "--out", "both/report.html", "--force")
    assert Path("both/report.html").read_text() != first


def test_files_that_are_no_report_or_table_are_kept(atoll: Atoll, refused: Refused, with_drawing: None) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "one", "--quiet")
    Path("page.html").write_text("<title>mine</title>")
    Path("paper.tex").write_text("\\documentclass{article}\n")

    page = refused("report", "one", "--out", "page.html")
    paper = refused("report", "one", "--export", "paper.tex")

    assert "'page.html' exists and is no report. Add --force" in page
    assert "'paper.tex' exists and is not such a table. Add --force" in paper
    assert Path("page.html").read_text() == "<title>mine</title>"
    assert Path("paper.tex").read_text() == "\\documentclass{article}\n"


@pytest.mark.parametrize("name", ["table.md", "table.csv", "table.tex"])
def test_exported_table_replaces_that_of_the_command_before(name: str, atoll: Atoll, with_drawing: None) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "one", "--quiet")

    atoll("report", "one", "--export", name)
    atoll("report", "one", "--export", name)

    assert "fedavg" in Path(name).read_text()
