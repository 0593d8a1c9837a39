"""Recipes: the numbers of the papers, and what is run to be held against them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.progress import Progress

from atoll.cli import main
from atoll.cli.paper import follow_all
from atoll.config import Config
from atoll.errors import AtollError
from atoll.experiments import coverage, paper_comparison, papers, reproduction, runner
from atoll.experiments.paper_planning import PlannedRun, plan_runs
from atoll.experiments.papers import SCALES, Cell, PrintedNumber
from atoll.experiments.runner import Outcome, run_cases
from atoll.methods._factory import make, settings_of, split_variant
from atoll.report import figures, html
from atoll.report.figures import FigureRequest
from atoll.storage.run_reader import Run

RECIPES = papers.list_recipes()

SMALL = {
    "title": "A table",
    "options": {"data": "digits", "clients": 3, "rounds": 1, "epochs": 1, "models": ["mlp:hidden=8"]},
    "cases": {"few": {"partition": "iid"}, "many": {"partition": "dirichlet:0.5", "rounds": 2}},
    "methods": {"Alone": "local", "Ours": {"run": "fedprox", "settings": {"mu": 0.5}}},
    "claims": ["Ours > Alone"],
    "scales": {"smoke": {"options": {"lr": 0.1}, "seeds": [0, 1]}, "full": {"cases": ["few"], "methods": ["Ours"]}},
}


def shelve(folder: Path, said: Any = SMALL, printed: str = "") -> Path:
    place = folder / "shelf" / "paper"
    place.mkdir(parents=True)
    (place / "table.yaml").write_text(yaml.safe_dump(said))
    if printed:
        (place / "table.csv").write_text("case,method,metric,value,std\n" + printed)
    return folder / "shelf"


def finished(seed: int, accuracy: float) -> Run:
    import pyarrow as pa

    rows = pa.table({"round": [1, 1], "client": ["0", "1"], "accuracy": [accuracy - 0.1, accuracy + 0.1]})
    summary = {
        "seed": seed, "status": "finished", "rounds": 1, "seconds": 2.5,
        "data": "digits", "partition": "iid", "clients": 3,
        "personal": {"best_by_val": accuracy, "best_by_val_round": 1},
    }  # fmt: skip
    return Run(Path(), summary, (), rows, {}, {})


# -- the recipes that are here -----------------------------------------------------------------------------------------


def test_every_table_of_the_five_papers_has_a_recipe() -> None:
    tables = {"dcpfl": 3, "pfedes": 2, "feddw": 4, "fedpd": 12, "scd": 5}
    assert {f"{paper}/table{i}" for paper, count in tables.items() for i in range(1, count + 1)} <= set(RECIPES)


def test_recipes_contain_all_printed_numbers() -> None:
    """As many as the tables of the papers have cells, empty ones included."""
    counts: dict[str, int] = {}
    for recipe in map(papers.read_recipe, RECIPES):
        counts[recipe.paper] = counts.get(recipe.paper, 0) + len(recipe.printed)
    assert counts == {"dcpfl": 97, "pfedes": 180, "feddw": 209, "fedpd": 648, "scd": 148}


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("dcpfl/table1", Cell("CIFAR-10, 10 clients", "Local-T", "accuracy"), 92.57),
        ("dcpfl/table2", Cell("CIFAR-100", "DC-PFL", "accuracy"), 74.70),
        ("feddw/table1", Cell("CIFAR-10, practical", "FedDW", "global accuracy"), 66.24),
        ("feddw/table4", Cell("CIFAR-100, pathological", "MOON+DW", "global accuracy"), 52.81),
        ("scd/table1", Cell("Dirichlet 1", "SCD", "personal"), 92.25),
        ("scd/table4", Cell("5 epochs, to 40 %", "Ditto w/ WF", "speedup"), 2.87),
    ],
)
def test_printed_numbers_match_the_papers(name: str, cell: Cell, value: float) -> None:
    assert papers.read_recipe(name).printed[cell].value == value


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_can_be_planned_at_every_scale(name: str, tmp_path: Path) -> None:
    recipe = papers.read_recipe(name)
    assert {"smoke", "full"} <= recipe.scales.keys() <= set(SCALES)
    for scale in recipe.scales.values():
        planned = plan_runs(recipe, scale, tmp_path)
        places = [p.config.out for p in planned]
        assert len(set(places)) == len(places)
        for config in {p.config.label: p.config for p in planned}.values():
            make(config.method, config.settings, config.terms, config.optimiser_options)


@pytest.mark.parametrize("name", RECIPES)
def test_printed_numbers_belong_to_known_cases_and_methods(name: str) -> None:
    recipe = papers.read_recipe(name)
    assert {c.case for c in recipe.printed} <= recipe.cases.keys()
    assert {c.method for c in recipe.printed} <= recipe.methods.keys()
    assert {c.metric for c in recipe.printed} <= recipe.measures.keys()
    for claim in recipe.claims:
        assert {word.strip() for word in claim.split(">")} <= recipe.methods.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_settings_of_a_recipe_are_known_to_its_methods(name: str) -> None:
    """A setting goes to the methods that have it; a setting that no method has is a misprint."""
    recipe = papers.read_recipe(name)
    methods = {split_variant(said.run.partition("+")[0])[0] for said in recipe.methods.values()}
    known = {s.name for m in methods for s in settings_of(make(m))}
    known |= {f"{m}.{s.name}" for m in methods for s in settings_of(make(m))}
    layers = [
        recipe.options,
        *recipe.cases.values(),
        *(m.options for m in recipe.methods.values()),
        *(s.options for s in recipe.scales.values()),
    ]
    asked = {key for layer in layers for key in layer.get("settings", {})}
    assert asked - known == set()


def smoke(name: str, folder: Path) -> dict[str, Any]:
    """Run a recipe at its smallest scale, and check what it leaves."""
    shown = CliRunner().invoke(main, ["paper", "run", name, "--scale", "smoke", "--out", str(folder)])
    assert shown.exit_code == 0, shown.output
    document: dict[str, Any] = json.loads((folder / "results.json").read_text())
    recipe = papers.read_recipe(name)
    assert document["recipe"] == name
    for table in document["tables"]:
        assert [row[0] for row in table["rows"]] == list(recipe.scale("smoke").methods or recipe.methods)
    assert all((folder / f"results.{ending}").exists() for ending in ("md", "csv", "tex"))
    assert len(document["figures"]) >= len(recipe.figures)
    return document


@pytest.mark.parametrize("name", ["dcpfl/table1", "fedpd/table6", "scd/table1"])
def test_smoke_scale_of_a_table_runs(name: str, tmp_path: Path, without_report: None) -> None:
    smoke(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["dcpfl/figure2", "feddw/figure5", "fedpd/figure2", "pfedes/figure3", "scd/figure2", "scd/figure3"]
)
def test_recipe_of_a_figure_draws_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "write_runs", lambda runs, out, own=(): out)
    monkeypatch.setattr(figures, "default_figures", lambda shown: [])
    document = smoke(name, tmp_path)
    text = (tmp_path / "results.md").read_text()
    for figure in document["figures"]:
        assert (tmp_path / figure["file"]).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / figure["file"]).with_suffix(".svg").exists()
        assert f"![{figure['caption']}]({figure['file']})" in text


@pytest.mark.papers
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_at_its_smallest_scale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all figures and the report, but without a report for each single run."""
    whole = html.write_runs
    monkeypatch.setattr(html, "write_runs", lambda runs, out, own=(): whole(runs, out, own) if own else out)
    document = smoke(name, tmp_path)
    assert all((tmp_path / name).stat().st_size > 0 for name in document["files"])


def test_every_recipe_answers_something_that_a_paper_prints() -> None:
    answered = [item.recipe for item in coverage.list_items() if item.recipe]
    assert sorted(answered) == RECIPES


def test_what_has_no_recipe_says_why() -> None:
    assert all(item.recipe or item.remarks for item in coverage.list_items())


def test_every_figure_of_the_papers_has_a_recipe() -> None:
    pictures = {
        "dcpfl": ("figure2", "figure3", "personalisation"),
        "feddw": ("figure4", "figure5", "figure6", "figure7", "figure8"),
        "fedpd": ("figure2", "figure3", "figure4", "figure5"),
        "pfedes": ("figure2", "figure3", "figure4", "personalisation", "enhanced", "sensitivity", "ablation"),
        "scd": ("figure2",),
    }
    for paper, items in pictures.items():
        for item in items:
            assert papers.read_recipe(f"{paper}/{item}").figures, f"{paper}/{item}"


# -- how a recipe becomes runs -----------------------------------------------------------------------------------------


def test_later_layers_of_options_override_earlier_ones(tmp_path: Path) -> None:
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    planned = {(p.case, p.method, p.config.seed): p.config for p in plan_runs(recipe, recipe.scale("smoke"), tmp_path)}
    assert len(planned) == 2 * 2 * 2
    ours = planned["many", "Ours", 1]
    assert (ours.partition, ours.rounds, ours.lr, ours.settings) == ("dirichlet:0.5", 2, 0.1, {"mu": 0.5})
    assert planned["few", "Alone", 0].settings == {}
    assert [(p.case, p.method) for p in plan_runs(recipe, recipe.scale("full"), tmp_path)] == [("few", "Ours")]


def by_case(planned: list[PlannedRun]) -> dict[str, list[Config]]:
    cases: dict[str, list[Config]] = {}
    for p in planned:
        cases.setdefault(p.case, []).append(p.config)
    return cases


def test_all_cases_share_one_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep has one method in many cases: with a queue for each case, one worker would do it all."""
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    cases = by_case(plan_runs(recipe, recipe.scale("smoke"), tmp_path))
    queues: list[list[str | None]] = []

    def note(configs: list[Config], watches: Any, **how: Any) -> Outcome:
        queues.append([c.out for c in configs])
        assert how == {"resume": True, "force": False, "workers": 2}
        return Outcome([], [])

    monkeypatch.setattr(runner, "_in_processes", note)
    run_cases(cases, lambda config: lambda done, line: None, workers=2)
    assert queues == [[c.out for configs in cases.values() for c in configs]]


def test_case_that_cannot_run_is_named_before_any_run_starts(tmp_path: Path) -> None:
    said = SMALL | {"cases": {"good": {}, "bad": {"partition": "pathological:99"}}}
    recipe = papers.read_recipe("paper/table", shelve(tmp_path, said))
    cases = by_case(plan_runs(recipe, recipe.scale("smoke"), tmp_path / "out"))
    with pytest.raises(AtollError, match="bad: "):
        run_cases(cases, lambda config: lambda done, line: None)
    assert not (tmp_path / "out").exists()


def test_progress_bar_counts_rounds_and_runs(tmp_path: Path, without_report: None) -> None:
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    planned = plan_runs(recipe, recipe.scale("full"), tmp_path / "out")
    with Progress(disable=True) as bars:
        run_cases(by_case(planned), follow_all(bars, planned))
        (task,) = bars.tasks
    assert (task.completed, task.total, task.description) == (1, 1, "1 of 1 runs")


def test_directory_of_a_planned_run_depends_on_its_configuration(tmp_path: Path) -> None:
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    scale = recipe.scale("full")
    before, again, other = (
        plan_runs(recipe, scale, tmp_path, **change)[0].config.out for change in ({}, {}, {"rounds": 9})
    )
    assert before == again != other


@pytest.mark.parametrize(
    "change",
    [
        {"titel": "x"},
        {"figure": "tsen"},
        {"figure": {"kind": "tsne", "row": 5}},
        {"scales": {"huge": {}}},
        {"scales": {"smoke": {"seed": 1}}},
        {"cases": {"a": {"date": 1}}},
    ],
)
def test_recipe_with_a_misspelt_entry_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    folder = shelve(tmp_path, SMALL | change)

    def planned() -> None:
        recipe = papers.read_recipe("paper/table", folder)
        plan_runs(recipe, recipe.scale("smoke"), tmp_path)

    with pytest.raises(AtollError):
        planned()


def test_unknown_recipe_or_scale_is_refused(tmp_path: Path) -> None:
    folder = shelve(tmp_path)
    with pytest.raises(AtollError, match="paper/table"):
        papers.read_recipe("paper/tabel", folder)
    with pytest.raises(AtollError, match="scale"):
        papers.read_recipe("paper/table", folder).scale("cpu")


# -- paper against measured --------------------------------------------------------------------------------------------


def test_gaps_are_measured_minus_printed(tmp_path: Path) -> None:
    """Measured 70 and 80 %: mean 75, deviation 5 * sqrt(2) = 7.071; printed 77.5: gap -2.5. A dash is no number."""
    recipe = papers.read_recipe(
        "paper/table", shelve(tmp_path, printed="few,Ours,accuracy,77.5,0.5\nfew,Alone,accuracy,-,\n")
    )
    loaded = {("few", name): [finished(0, 0.7), finished(1, 0.8)] for name in ("Ours", "Alone")}
    found = {c.cell.method: c for c in paper_comparison.compare_numbers(recipe, loaded)}
    assert found["Ours"].printed == PrintedNumber(77.5, 0.5)
    assert found["Ours"].measured is not None
    assert found["Ours"].measured.std == pytest.approx(7.071, abs=1e-3)
    assert found["Ours"].gap == pytest.approx(-2.5)
    assert found["Alone"].gap is None
    (sheet,) = paper_comparison.result_sheets(list(found.values()), loaded)
    assert sheet.title == "few (run on digits, iid, 3 clients)"
    assert sheet.rows == [["Ours", "77.50 ± 0.50", "75.00 ± 7.07", "-2.50"], ["Alone", "–", "75.00 ± 7.07", "–"]]


def test_measure_with_an_equals_sign_is_not_scaled_to_percent() -> None:
    stat = paper_comparison.mean_over_seeds([finished(0, 0.5)], "=seconds")
    assert stat is not None
    assert stat.mean == 2.5
    assert paper_comparison.mean_over_seeds([finished(0, 0.5)], "=target.reached.round") is None


def test_claims_are_judged_over_the_means_of_seeds(tmp_path: Path) -> None:
    """Ours is above by 10 points in seed 0 and below by 2 in seed 1: 4 on average, error 6, t(0.975, 1) = 12.706."""
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    loaded = {
        ("few", "Ours"): [finished(0, 0.7), finished(1, 0.7)], ("few", "Alone"): [finished(0, 0.6), finished(1, 0.72)]
    }  # fmt: skip
    (found,) = paper_comparison.check_claims(recipe, loaded)
    assert (found.better, found.worse, found.seeds) == ("Ours", "Alone", "1 of 2")
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(4)
    assert found.difference.margin == pytest.approx(6 * 12.7062, abs=1e-3)
    assert paper_comparison.claim_sheet([found]).rows[0][3] == "not decided (±76)"


def test_claims_are_not_decided_by_one_seed(tmp_path: Path) -> None:
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    loaded = {("few", name): [finished(0, score)] for name, score in (("Ours", 0.9), ("Alone", 0.1))}
    (found,) = paper_comparison.check_claims(recipe, loaded)
    assert found.difference is None
    assert paper_comparison.claim_sheet([found]).rows[0][3] == "not decided: one seed"


def test_claims_are_judged_by_what_the_recipe_measures(tmp_path: Path) -> None:
    """By seconds, an entry of the summary like any other: both took 2.5; entries with an equals sign are no shares."""
    recipe = replace(
        papers.read_recipe("paper/table", shelve(tmp_path)), measures={"time": "seconds", "bytes": "=seconds"}
    )
    loaded = {("few", name): [finished(s, score) for s in (0, 1)] for name, score in (("Ours", 0.7), ("Alone", 0.6))}
    (found,) = paper_comparison.check_claims(recipe, loaded)
    assert found.difference is not None
    assert (found.metric, found.difference.mean) == ("time", 0)


def test_smoke_scale_gives_no_verdict_and_names_the_data_that_ran(tmp_path: Path, without_report: None) -> None:
    recipe = papers.read_recipe("paper/table", shelve(tmp_path))
    recipe = replace(recipe, figures=[FigureRequest("curves")])
    made = reproduction.plan(recipe, "smoke", tmp_path / "out", None)
    document = reproduction.run_plan(made, lambda config: lambda done, line: None).document
    assert document["claims"]["rows"] == []
    assert document["figures"][0]["caption"].endswith("Run on digits at scale smoke.")
    assert document["tables"][0]["title"] == "few (run on digits, iid, 3 clients)"


def test_case_may_have_options_for_single_methods(tmp_path: Path) -> None:
    cases = {"few": {"partition": "iid", "methods": {"Ours": {"width": 4}}}}
    recipe = papers.read_recipe("paper/table", shelve(tmp_path, SMALL | {"cases": cases}))
    widths = {p.method: p.config.width for p in plan_runs(recipe, recipe.scale("smoke"), tmp_path)}
    assert widths == {"Ours": 4, "Alone": None}


def test_stand_in_replaces_public_data_as_well(tmp_path: Path) -> None:
    scales = {"smoke": {"stand_ins": {"emnist:byclass": "digits"}}, "full": {}}
    options = SMALL["options"] | {"public_data": "emnist:byclass"}  # type: ignore[operator]
    recipe = papers.read_recipe("paper/table", shelve(tmp_path, SMALL | {"options": options, "scales": scales}))
    assert {p.config.public_data for p in plan_runs(recipe, recipe.scale("smoke"), tmp_path)} == {"digits"}


def test_paper_command_lists_all_recipes() -> None:
    shown = CliRunner().invoke(main, ["paper", "--json"])
    assert [r["name"] for r in json.loads(shown.stdout)] == RECIPES
    assert CliRunner().invoke(main, ["paper", "show", "scd/table4"]).exit_code == 0


def test_unknown_item_of_a_paper_lists_the_recipes_of_that_paper() -> None:
    with pytest.raises(AtollError, match=r"Unknown recipe 'dcpfl/table9'\. Recipes of this paper: .*dcpfl/table1, "):
        papers.read_recipe("dcpfl/table9")
