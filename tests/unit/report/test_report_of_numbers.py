"""Tables, figures and pages of runs whose score is an error: its own name, and the lowest value is best."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support import problem_data

from atoll.config import Config
from atoll.core.problems import Numbers
from atoll.dashboard.comparison import compare
from atoll.dashboard.detail import detail
from atoll.dashboard.listing import row
from atoll.engine.build import run_experiment
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.experiments.trials import best_trial, document, trial_of
from atoll.report import figures, html, speedup, table, table_export
from atoll.report.figures import metrics
from atoll.report.figures.base import by_case
from atoll.report.terminal_table import print_table
from atoll.storage.run_dir import RunDir
from atoll.storage.run_reader import Run, load
from atoll.storage.tolerant_reader import look


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Local training for one epoch, and for so many that its error is lower."""
    folder = tmp_path_factory.mktemp("runs")
    return [_run(folder / name, epochs) for name, epochs in (("short", 1), ("long", 8))]


def _run(folder: Path, epochs: int, task: str = Numbers.task) -> Run:
    config = Config(
        method="local", models=("mlp:hidden=8",), clients=12, partition="iid", rounds=3, epochs=epochs, backend="loop",
        batch_size=4, target=0.5 if task == Numbers.task else None,
    )  # fmt: skip
    setup = build_setup(config, problem_data.images(task))
    with RunDir(folder) as run_dir:
        run_dir.start(setup.config, resume=False, force=False)
        run_experiment(setup, run_dir)
    return load(folder)


def test_files_name_the_score_and_nothing_is_called_accuracy(runs: list[Run]) -> None:
    run = runs[0]

    assert run.summary["task"] == "regression"
    assert {"mse", "pre_mse", "generic_mse", "mae", "r2"} <= set(run.clients.column_names)
    assert run.summary["target"].keys() == {"mse", "of", "reached"}
    for name in ("summary.json", "metrics.jsonl", "config.yaml", "holdings.json"):
        assert "accuracy" not in (run.path / name).read_text()


def test_best_round_and_worst_clients_follow_the_error(runs: list[Run]) -> None:
    personal = runs[1].summary["personal"]
    errors = [line["personal"]["post"]["mse"] for line in runs[1].metrics]

    assert personal["best"] == min(errors)
    assert personal["worst_decile"] > personal["best_by_val"]


def test_lowest_error_ranks_first_leads_and_is_ahead(runs: list[Run]) -> None:
    rows = table.rows(runs)
    means = [r.best_by_val.mean for r in rows if r.best_by_val]

    assert means == sorted(means)
    assert table.leaders(rows, table.COLUMNS[0]) == {rows[0].name}


def test_printed_table_names_score_and_direction(runs: list[Run]) -> None:
    console = Console(record=True, width=140)

    print_table(console, table.rows(runs))

    assert "Scores: MSE, lower is better." in console.export_text()
    assert [c.family for c in table.columns(table.rows(runs))][:5] == ["Personal MSE"] * 4 + ["Generic"]


def test_page_has_the_words_of_the_score(runs: list[Run], tmp_path: Path) -> None:
    page = html.write_runs(runs, tmp_path / "report.html").read_text()

    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", "", page, flags=re.S)
    assert "ccurac" not in text
    for words in ("reaches a personal MSE of", "lower than", "lowest validation MSE", "MSE by round", "further down"):
        assert words in text
    assert "Samples by client</h2>" in text


def test_figures_show_errors_as_they_are(runs: list[Run]) -> None:
    (curves,) = metrics.curves(by_case(runs))

    axes = curves.draw(11.0).axes[0]
    highest = max(line["personal"]["post"]["mse"] for run in runs for line in run.metrics)
    assert curves.caption.startswith("MSE by round")
    assert max(max(line.get_ydata()) for line in axes.get_lines()) == pytest.approx(highest)


def test_figures_of_classes_and_mixed_problems_are_refused(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"'moduli' shows classes, but the labels of .* are numbers"):
        figures.make_figures([figures.parse_request("moduli")], by_case(runs))
    other = replace(runs[0], summary={**runs[0].summary, "task": "multilabel"})
    with pytest.raises(AtollError, match="cannot be compared: their tasks are regression, multilabel"):
        table_export.sheet([runs[0], other])


def test_speedup_reaches_a_target_from_above(runs: list[Run]) -> None:
    first = runs[1].metrics[0]["personal"]["post"]["weighted"]

    assert speedup.arrival(runs[1], "waiting", first).rounds == 1
    with pytest.raises(AtollError, match=r"never reached 1e-09; its best is .* Give a higher --target"):
        speedup.arrival(runs[1], "waiting", 1e-9)


def test_sweep_chooses_the_lowest_validation_error(runs: list[Run]) -> None:
    trials = [trial_of({"epochs": str(at)}, [run], "personal") for at, run in enumerate(runs)]

    assert best_trial(trials).val == min(t.val for t in trials)
    assert document(trials, "personal")["by"] == "validation MSE, personal"


def test_dashboard_has_the_score_with_its_name_and_direction(runs: list[Run]) -> None:
    seen = look(runs[0].path, None)
    line = row("id", "short", seen)

    assert line["score"] == runs[0].summary["personal"]["best_by_val"]
    assert line["criterion"]["name"] == "mse"  # type: ignore[index]
    assert line["criterion"]["higher"] is False  # type: ignore[index]
    assert detail(line, seen)["facts"]["now"] == runs[0].metrics[-1]["personal"]["post"]["mse"]  # type: ignore[index]
    found = compare({"a": seen, "b": look(runs[1].path, None)})
    assert found["columns"][0]["family"] == "Personal MSE"  # type: ignore[index]
