"""Declared experiments: what a declaration must say, how settings are chosen, and what the records decide."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll.errors import AtollError
from atoll.experiments import claim_page, claim_records, claim_runs, claim_verdicts
from atoll.experiments.claim_records import SEARCH, TABLE, Record, read_record, write_record
from atoll.experiments.claims import Claim, list_claims, read_claim
from atoll.experiments.papers import recipes_dir
from atoll.experiments.search import Point
from atoll.report.seed_statistics import Difference

DECLARED: dict[str, Any] = {
    "name": "DC-PFL",
    "claim": "DC-PFL is said to beat Local.",
    "differs": ["Digits in place of CIFAR-10."],
    "full": "A larger machine would run the paper's setting.",
    "options": {
        "data": "digits", "rows": 200, "clients": 3, "rounds": 1, "epochs": 1, "models": ["linear"], "backend": "loop",
    },
    "measure": "personal.best_by_val",
    "validation": "personal.metrics.best_by_val.val",
    "effect": 1.0,
    "search_seeds": [100],
    "seeds": [0, 1],
    "methods": {
        "Local": {"run": "local", "search": [{"lr": 0.01}, {"lr": 0.1}]},
        "DC-PFL": {"run": "dcpfl", "search": [{"lam": 0.1}, {"lam": 1}]},
        "without": {"run": "dcpfl", "like": "DC-PFL", "options": {"settings": {"lam": 0}}},
    },
    "compare": ["DC-PFL > Local", "DC-PFL > without"],
}  # fmt: skip


def declare(folder: Path, **changes: Any) -> Claim:
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy" / "claim.yaml").write_text(yaml.safe_dump(DECLARED | changes))
    return read_claim("toy", folder)


def record(
    method: str, seed: int, test: float, part: str = TABLE, point: Point | None = None, val: float = 0.5
) -> Record:
    return Record(part, method, point or {}, seed, test, val, [[1, test]], 1.0, "0" * 64, "1")


def quiet(planned: claim_records.ClaimRun) -> Any:
    return lambda done, line: None


# -- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", list_claims())
def test_declarations_of_the_papers_can_be_read_and_planned(paper: str) -> None:
    claim = read_claim(paper)

    planned = claim_runs.plan_search(claim) + claim_runs.plan_table(claim, {})

    assert len({one.file_name for one in planned}) == len(planned)
    assert len(claim.seeds) >= 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seeds": [0, 100]}, "seeds \\[100\\] are in the search and in the table"),
        (
            {"methods": DECLARED["methods"] | {"Local": {"run": "local", "search": [{"lr": 1}]}}},
            "same number of points",
        ),
        ({"methods": DECLARED["methods"] | {"without": {"run": "dcpfl", "like": "FedGH"}}}, "no search of its own"),
        ({"compare": ["DC-PFL > Fed"]}, "Fed"),
        ({"compare": ["DC-PFL"]}, "Write 'A > B'"),
        ({"sedes": [1]}, "sedes"),
    ],
)
def test_unfair_or_incomplete_declaration_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(AtollError, match=reason):
        declare(tmp_path, **changes)


def test_paper_without_declaration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="declared claim"):
        read_claim("nothing", tmp_path)


# -- planning and choosing --------------------------------------------------------------------------------------------


def test_ablation_takes_chosen_settings_but_keeps_what_it_switches_off(tmp_path: Path) -> None:
    claim = declare(tmp_path)

    planned = claim_runs.plan_table(claim, {"DC-PFL": {"lam": "1", "lr": "0.02"}})

    first = {one.method: one.config for one in planned if one.config.seed == 0}
    assert first["DC-PFL"].settings["lam"] == "1"
    assert (first["without"].settings["lam"], first["without"].lr) == (0, 0.02)


def test_choice_is_by_mean_validation_score_and_not_by_test_score(tmp_path: Path) -> None:
    claim = declare(tmp_path, search_seeds=[100, 101])
    low, high = claim.methods["DC-PFL"].search
    searched = [
        record("DC-PFL", 100, 0.9, SEARCH, low, val=0.5),
        record("DC-PFL", 101, 0.9, SEARCH, low, val=0.6),
        record("DC-PFL", 100, 0.1, SEARCH, high, val=0.4),
        record("DC-PFL", 101, 0.1, SEARCH, high, val=0.8),  # mean 0.6 against 0.55
        *(record("Local", 100, 0.5, SEARCH, point, val=0.5) for point in claim.methods["Local"].search),
    ]

    chosen = claim_runs.choose(claim, searched)

    assert chosen == {"DC-PFL": high, "Local": {"lr": "0.01"}}  # the first of two equal points


def test_name_of_a_record_changes_with_the_declaration_of_its_run_alone(tmp_path: Path) -> None:
    claim = declare(tmp_path)
    names = [claim_records.record_name(c, TABLE, "DC-PFL", {"lam": "1"}, 0) for c in (
        claim, replace(claim, effect=2.0), replace(claim, options={**claim.options, "rounds": 2})
    )]  # fmt: skip

    assert names[0] == names[1] != names[2]


# -- deciding ---------------------------------------------------------------------------------------------------------


def test_differences_are_paired_by_seed_and_in_percentage_points(tmp_path: Path) -> None:
    """Differences of 2 and 4 points: mean 3, error 1, t(0.975, 1) = 12.7062; one comparison has no runs."""
    claim = declare(tmp_path)
    records = [record("DC-PFL", 0, 0.62), record("DC-PFL", 1, 0.74), record("Local", 1, 0.70), record("Local", 0, 0.60)]

    found, ablation = claim_verdicts.decide(claim, records)

    assert found.difference is not None
    assert found.difference.mean == pytest.approx(3)
    assert found.difference.high == pytest.approx(3 + 12.7062, abs=1e-4)
    assert claim_verdicts.verdict_text(claim, found).startswith("not decided (±13)")
    assert ablation.difference is None
    assert claim_verdicts.verdict_text(claim, ablation) == "not yet run: 0 of 2 seeds"


def test_fewer_seeds_than_declared_give_no_verdict(tmp_path: Path) -> None:
    claim = declare(tmp_path, seeds=[0, 1, 2])
    records = [
        record(name, seed, 0.5 + (name == "DC-PFL") * (0.1 + seed / 1e4)) for name in claim.methods for seed in (0, 1)
    ]

    found, _ = claim_verdicts.decide(claim, records)

    assert found.difference is not None
    assert found.difference.low > 0
    assert claim_verdicts.verdict_text(claim, found) == "not yet run: 2 of 3 seeds"


def test_verdict_that_the_correction_takes_back_is_not_decided(tmp_path: Path) -> None:
    """Two comparisons with the same differences, so that Holm doubles the smaller p-value.

    With 2, 2.5 and 3, t = 2.5 / 0.288675 = 8.66 and p = 0.0131, doubled 0.0262: decided. With 1, 1.5 and 2.1,
    t = 1.5333 / 0.3180 = 4.82 and p = 0.0404, doubled 0.081: taken back.
    """
    claim = declare(tmp_path, seeds=[0, 1, 2])
    for gaps, verdict in (((2, 2.5, 3), "holds"), ((1, 1.5, 2.1), "not decided after the correction")):
        ours = [record("DC-PFL", seed, 0.5 + gap / 100) for seed, gap in enumerate(gaps)]
        others = [record(name, seed, 0.5) for name in ("Local", "without") for seed in range(3)]
        found, _ = claim_verdicts.decide(claim, ours + others)
        assert claim_verdicts.verdict_text(claim, found).startswith(verdict)


def test_difference_below_the_effect_of_interest_says_so(tmp_path: Path) -> None:
    claim = declare(tmp_path, seeds=[0, 1, 2])
    gaps = {0: 0.001, 1: -0.001, 2: 0.0005}
    records = [record(name, seed, 0.5 + (name == "DC-PFL") * gaps[seed]) for name in claim.methods for seed in gaps]

    found, _ = claim_verdicts.decide(claim, records)

    assert "less than the effect of interest" in claim_verdicts.verdict_text(claim, found)


# -- running and writing ----------------------------------------------------------------------------------------------


def test_finished_runs_are_read_and_only_missing_ones_run_again(tmp_path: Path) -> None:
    claim = declare(tmp_path)
    records, runs = tmp_path / "records", tmp_path / "runs"
    chosen, found = claim_runs.run_claim(claim, records, runs, quiet)
    kept = {path.name: path.read_bytes() for path in records.iterdir()}
    lost = next(path for path in records.iterdir() if path.name.startswith("table-without"))
    lost.unlink()
    begun: list[str] = []

    again, repeated = claim_runs.run_claim(
        claim,
        records,
        runs,
        lambda planned: begun.append(planned.method) or quiet(planned),  # type: ignore[func-returns-value]
    )

    assert len(found) == 4 + 6
    assert begun == ["without"]
    assert (again, [r.test for r in repeated]) == (chosen, [r.test for r in found])
    assert kept.keys() == {path.name for path in records.iterdir()}
    assert not any(runs.iterdir())


def test_page_opens_with_the_verdict_and_follows_from_the_records(tmp_path: Path) -> None:
    claim = declare(tmp_path)
    records = tmp_path / "records"
    records.mkdir()
    for planned in claim_runs.plan_search(claim):
        made = record(planned.method, 100, 0.5, SEARCH, planned.point)
        write_record(made, records / planned.file_name)
    for planned in claim_runs.plan_table(claim, {"Local": {"lr": "0.01"}, "DC-PFL": {"lam": "0.1"}}):
        test = 0.5 + 0.1 * (planned.method == "DC-PFL") + planned.config.seed / 1e4 * (planned.method == "Local")
        write_record(
            record(planned.method, planned.config.seed, test, point=planned.point), records / planned.file_name
        )

    page = claim_page.write_report(claim_page.ClaimReport(claim, records), tmp_path / "toy").read_text()

    # Local has 50.00 and 50.01, DC-PFL 60: differences 10 and 9.99.
    assert "DC-PFL > Local: holds (+9.99 points" in page.splitlines()[2] or "+10.00 points" in page.splitlines()[2]
    assert "| Local | `local` | 50.00 ± 0.01 | 2 | `lr=0.01` |" in page
    assert (tmp_path / "toy" / "results" / claim_page.PICTURE).exists()


def test_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"part": "table"}')

    with pytest.raises(AtollError, match=r"one.json is no record of a run"):
        read_record(tmp_path / "one.json")


@pytest.mark.parametrize("paper", list_claims())
def test_results_page_of_a_paper_is_what_its_records_say(paper: str) -> None:
    folder = recipes_dir() / paper
    report = claim_page.ClaimReport(read_claim(paper), folder / "results" / "claim")

    assert (folder / "RESULTS.md").read_text() == claim_page.results_page(report, folder), (
        f"atoll paper claim {paper} --page"
    )


def test_differences_over_some_of_the_seeds_are_not_shown() -> None:
    claim = read_claim("dcpfl")
    pair = claim.compare[0]
    partial = claim_verdicts.Decided(pair, Difference(-6.7, -11.6, -1.8, 0.01, 2), 0.01, False, None)

    (row, *_) = claim_verdicts.comparison_sheet(claim, [partial]).rows

    assert row == [str(pair), "–", "–", "–", "2", "not yet run: 2 of 5 seeds"]
