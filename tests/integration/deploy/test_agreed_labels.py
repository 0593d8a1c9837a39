"""Labels at sites: names of classes that no site has all of, and the common unit of numbers to predict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.false_statistics import with_false_statistics
from support.hospital_tables import HOSPITALS
from support.local_sites import Wire, book

from atoll.analysis.audit import audit_statistics
from atoll.config import Config
from atoll.core.problems import Numbers
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.server.run import run_deployment
from atoll.deploy.site.config import read_site
from atoll.deploy.site.models import open_site
from atoll.deploy.site.worker import local
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import Setup, build_setup
from atoll.errors import AtollError
from atoll.storage import audit_log

OPTIONS: dict[str, Any] = {"method": "fedavg", "rounds": 2, "epochs": 1, "backend": "loop", "seed": 3}
# No hospital has all classes. Whole numbers come before other names, 2 before 10.
LABELS = {"north": ("well", "ill"), "south": ("2", "well"), "west": ("10", "2", "ill")}
ALL_CLASSES = ("2", "10", "ill", "well")


def lines(hospital: str, label: Callable[[np.random.Generator, float], object], rows: int = 60) -> list[str]:
    rng = np.random.default_rng(HOSPITALS.index(hospital))
    ages = rng.integers(20, 90, rows).tolist()
    return [f"{age},{rng.normal():.3f},{label(rng, age)}" for age in ages]


def write_classes(folder: Path, **more: list[str]) -> Path:
    """Write a CSV for each hospital, and one with all rows; ``more`` adds rows to some hospitals."""
    folder.mkdir(parents=True, exist_ok=True)
    together = ["age,dose,outcome,hospital"]
    for name in HOSPITALS:
        own = lines(name, lambda rng, age, name=name: rng.choice(LABELS[name])) + more.get(name, [])  # type: ignore[misc]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *own]) + "\n")
        together += [f"{line},{name}" for line in own]
    (folder.parent / "all.csv").write_text("\n".join(together) + "\n")
    return folder


def write_numbers(folder: Path) -> Path:
    """Write a CSV for each hospital whose label is a price, with another mean at each of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for at, name in enumerate(HOSPITALS):
        own = lines(name, lambda rng, age, at=at: f"{1000 * at + 30 * age + rng.normal(0, 50):.2f}")  # type: ignore[misc]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,price", *own]) + "\n")
    return folder


def setup(data: Path, label: str, **options: Any) -> Setup:
    return build_setup(Config(data=f"{data}?label={label}", partition="natural", **OPTIONS | options))


def sites(folder: Path, data: Path, label: str, **entries: Any) -> Wire:
    for name in HOSPITALS:
        (folder / name / "state").mkdir(parents=True, exist_ok=True)
        site = {
            "name": name,
            "data": f"{data / name}.csv?label={label}",
            "privacy": "off",
            "allow": {"scores": "exact"},
        }
        (folder / name / "site.yaml").write_text(yaml.safe_dump(site | entries))
    return Wire({name: local(read_site(folder / name)) for name in HOSPITALS})


def deploy(folder: Path, line: Wire, **options: Any) -> Result:
    config = OPTIONS | {"min_class_count": 0} | options
    job = DeploymentJob(str(folder / "run"), config, {name: {} for name in HOSPITALS}, report=False)
    return run_deployment(job, line, clock=line.clock)


@pytest.mark.promise(
    "Between machines", "Sites that have different classes agree on one list; no site needs to have all."
)
@pytest.mark.parametrize("options", [{}, {"method": "fedproto"}, {"standardise": "no", "missing": "site"}])
def test_sites_with_different_classes_give_the_bits_of_a_simulation(options: dict[str, Any], tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data")

    result = deploy(tmp_path, sites(tmp_path, data, "outcome"), **options)

    folder = run_experiment(setup(data, "outcome", **options))
    table = run_experiment(setup(tmp_path / "all.csv", "outcome&owner=hospital", **options))
    assert result.summary["digest"] == folder.summary["digest"] == table.summary["digest"]
    assert folder.setup.federation.dataset.classes == ALL_CLASSES
    assert [line["personal"] for line in result.history] == [line["personal"] for line in folder.history]


def test_model_of_a_site_names_classes_that_its_own_file_lacks(atoll: Any, tmp_path: Path) -> None:
    deploy(tmp_path, sites(tmp_path, write_classes(tmp_path / "data"), "outcome"))
    (tmp_path / "new.csv").write_text("age,dose\n40,0.5\n70,\n")

    shown = json.loads(atoll("predict", tmp_path / "south", tmp_path / "new.csv", "--json").stdout)

    assert open_site(tmp_path / "south").data.classes == ALL_CLASSES
    assert [tuple(row["probabilities"]) for row in shown] == [ALL_CLASSES, ALL_CLASSES]


def test_names_of_classes_are_in_the_logs_and_in_the_audit(tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data")
    deploy(tmp_path, sites(tmp_path, data, "outcome"))

    (sent,) = book(tmp_path / "west", "statistics")
    record = [r for r in audit_log.read(tmp_path / "run" / audit_log.NAME) if (r.round, r.client) == (0, "west")]
    simulated = setup(data, "outcome").preparations
    (item,) = [i for i in audit_statistics(simulated) if (i.direction, i.field) == ("up", "class_names")]

    assert [(r.bytes, r.sha256) for r in record] == [(sent["bytes"], sent["sha256"])]
    assert simulated.sent["west"].class_names == '["2","10","ill"]'
    assert item.bytes > 0


def test_site_can_keep_names_of_classes_to_itself(tmp_path: Path) -> None:
    line = sites(tmp_path, write_classes(tmp_path / "data"), "outcome", allow={"statistics": False})

    with pytest.raises(AtollError, match=r"keeps .*names of classes"):
        deploy(tmp_path, line, standardise="no", missing="site")

    assert not book(tmp_path / "north", "statistics")


def test_sites_with_the_same_classes_send_no_names(tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data")
    for name in HOSPITALS:
        text = (data / f"{name}.csv").read_text().replace(",2\n", ",well\n").replace(",10\n", ",ill\n")
        (data / f"{name}.csv").write_text(text + "30,0.1,ill\n30,0.1,well\n")

    deploy(tmp_path, sites(tmp_path, data, "outcome"))

    tables = json.loads((tmp_path / "run" / "deployment.json").read_bytes())["tables"]
    assert {sent["class_names"] for sent in tables["sent"].values()} == {"[]"}


def test_class_of_too_few_rows_is_not_named_and_the_run_says_so(tmp_path: Path) -> None:
    line = sites(tmp_path, write_classes(tmp_path / "data", west=["50,0.1,rare"] * 3), "outcome", privacy=None)

    with pytest.raises(
        AtollError, match=r"Site 'west' cannot take part: has samples of a class that no site has named.*classes=a"
    ):
        deploy(tmp_path, line, min_class_count=10)

    tables = [frame.head["tables"] for _, frame in line.asked if frame.kind == "begin"]
    assert "rare" not in str(tables)


def test_classes_that_sites_spell_differently_are_refused_with_both_sites(tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data")
    (data / "west.csv").write_text((data / "west.csv").read_text().replace("ill", "Ill"))

    with pytest.raises(AtollError, match=r"Site 'west' has the class 'Ill' and site 'north' 'ill', .* capitals"):
        deploy(tmp_path, sites(tmp_path, data, "outcome"))


def test_server_notes_which_classes_each_site_named(tmp_path: Path) -> None:
    deploy(tmp_path, sites(tmp_path, write_classes(tmp_path / "data"), "outcome"))

    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert (
        "Classes of all sites: 2, 10, ill, well. Named by north: ill, well; south: 2, well; west: 2, 10, ill." in events
    )


@pytest.mark.parametrize("declared", [True, False])
def test_site_that_lists_its_classes_needs_the_others_to_list_the_same(declared: bool, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data")
    sites(tmp_path, data, "outcome")
    listed = f"{data}/{{}}.csv?label=outcome&classes=2,10,ill,well"
    for name in HOSPITALS if declared else HOSPITALS[:1]:
        values = yaml.safe_load((tmp_path / name / "site.yaml").read_text())
        (tmp_path / name / "site.yaml").write_text(yaml.safe_dump(values | {"data": listed.format(name)}))
    line = Wire({name: local(read_site(tmp_path / name)) for name in HOSPITALS})

    if declared:
        expected = run_experiment(setup(data, "outcome&classes=2,10,ill,well"))
        assert deploy(tmp_path, line).summary["digest"] == expected.summary["digest"]
    else:
        with pytest.raises(AtollError, match=r"differ in classes: 4 and 2\. List all classes"):
            deploy(tmp_path, line)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"class_names": '["well","2"]'}, "names of classes in another order"),
        ({"class_names": '["2","2"]'}, "names of classes in another order"),
        ({"class_names": "[7]"}, "names of classes that cannot be read"),
        ({"class_names": "{"}, "names of classes that cannot be read"),
        ({"target_rows": 3}, "other sums of targets than the run needs"),
    ],
)
def test_impossible_labels_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    line = sites(tmp_path, write_classes(tmp_path / "data"), "outcome")
    line.sites["south"] = with_false_statistics(line.sites["south"], change)

    with pytest.raises(AtollError, match=f"Site 'south' sent statistics of columns that cannot be.*{said}"):
        deploy(tmp_path, line)


@pytest.mark.promise("Between machines", "Numbers to predict have one unit at all sites, that of the simulation.")
@pytest.mark.parametrize(
    "options", [{}, {"standardise": "site"}, {"standardise": "no", "missing": "site"}, {"method": "ditto"}]
)
def test_numbers_to_predict_give_the_bits_of_a_simulation(options: dict[str, Any], tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")

    result = deploy(tmp_path, sites(tmp_path, data, "price", task="regression"), **options)

    expected = run_experiment(setup(data, "price", task="regression", **options))
    assert result.summary["digest"] == expected.summary["digest"]
    assert [line["personal"] for line in result.history] == [line["personal"] for line in expected.history]


def test_unit_of_numbers_is_that_of_all_training_rows_and_errors_are_in_the_unit_of_the_files(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    result = deploy(tmp_path, sites(tmp_path, data, "price", task="regression"))

    federation = setup(data, "price", task="regression").federation
    prices = federation.labels(np.concatenate(federation.train)).astype(float)[:, 0]
    problem = open_site(tmp_path / "north").pool.problem
    assert isinstance(problem, Numbers)
    np.testing.assert_allclose([*problem.centre, *problem.scale], [prices.mean(), prices.std()], rtol=1e-9)
    assert result.history[-1]["personal"]["post"]["mse"] > 1000  # a standardised error would be about 1


def test_site_that_keeps_sums_to_itself_runs_with_the_unit_of_the_files(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    line = sites(tmp_path, data, "price", task="regression", allow={"statistics": False, "scores": "exact"})

    with pytest.raises(AtollError, match=r"keeps .*sums of targets to itself.*--standardise no for numbers to predict"):
        deploy(tmp_path, line, standardise="site", missing="site")

    options = {"standardise": "no", "missing": "site"}
    expected = run_experiment(setup(data, "price", task="regression", **options))
    assert deploy(tmp_path, line, **options).summary["digest"] == expected.summary["digest"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target_rows": 7}, "targets of 7 rows"),
        ({"target_total": None}, "other sums of targets"),
        ({"target_squares": torch.zeros(1, dtype=torch.float64)}, "larger than its squares allow"),
    ],
)
def test_impossible_sums_of_targets_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    line = sites(tmp_path, write_numbers(tmp_path / "data"), "price", task="regression")
    line.sites["south"] = with_false_statistics(line.sites["south"], change)

    with pytest.raises(AtollError, match=said):
        deploy(tmp_path, line)
