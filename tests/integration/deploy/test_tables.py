"""Raw tables at sites: the bits of the simulation, what leaves a site, and what its rules keep there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.false_statistics import with_false_statistics
from support.hospital_tables import HOSPITALS, write_folder, write_table, write_unlike
from support.local_sites import Wire, book

from atoll.config import Config
from atoll.deploy.export_sites import export_sites
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.server.run import run_deployment
from atoll.deploy.site.config import read_site
from atoll.deploy.site.models import open_site
from atoll.deploy.site.worker import local
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.storage import audit_log

OPTIONS: dict[str, Any] = {"method": "fedavg", "rounds": 2, "epochs": 1, "backend": "loop", "seed": 3}


def simulate(folder: Path, **options: Any) -> Result:
    data = f"{folder}?label=outcome"
    return run_experiment(build_setup(Config(data=data, partition="natural", **OPTIONS | options)))


def sites(folder: Path, data: Path, ending: str = ".csv?label=outcome", **entries: Any) -> Wire:
    """Return sites that have one hospital's file each."""
    for name in HOSPITALS:
        (folder / name / "state").mkdir(parents=True, exist_ok=True)
        site = {"name": name, "data": f"{data / name}{ending}", "privacy": "off", "allow": {"scores": "exact"}}
        (folder / name / "site.yaml").write_text(yaml.safe_dump(site | entries))
    return Wire({name: local(read_site(folder / name)) for name in HOSPITALS})


def deploy(folder: Path, line: Wire, **options: Any) -> Result:
    config = OPTIONS | {"min_class_count": 0} | options
    job = DeploymentJob(
        run_dir=str(folder / "run"), config=config, sites={name: {} for name in HOSPITALS}, report=False
    )
    return run_deployment(job, line, clock=line.clock)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"standardise": "site"},
        {"standardise": "no", "missing": "site"},
        {"missing": "indicator"},
        {"min_class_count": 10},
        {"method": "fedproto"},
    ],
)
def test_sites_with_their_own_files_give_the_bits_of_a_simulation_of_the_folder(
    options: dict[str, Any], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data")

    result = deploy(tmp_path, sites(tmp_path, data), **options)

    expected = simulate(data, **options)
    assert result.summary["digest"] == expected.summary["digest"]
    assert [line["personal"] for line in result.history] == [line["personal"] for line in expected.history]


@pytest.mark.parametrize("method", ["fedproto", "fml", "dcpfl"])
def test_sites_with_unlike_columns_give_the_bits_of_a_simulation(method: str, tmp_path: Path) -> None:
    data = write_unlike(tmp_path / "data")
    options = {"method": method, "columns": "own", "min_class_count": 10, "cov_source": "means"}
    options = options if method == "dcpfl" else {"method": method, "columns": "own"}

    result = deploy(tmp_path, sites(tmp_path, data), **options)

    assert result.summary["digest"] == simulate(data, **options).summary["digest"]


@pytest.mark.parametrize("split", ["auto", "official", "client_82"])
def test_sites_whose_files_say_which_rows_are_for_testing_give_the_bits_of_a_simulation(
    split: str, tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data")
    for path in data.iterdir():
        head, *lines = path.read_text().splitlines()
        marked = [f"{line},{'test' if at % 4 == 0 else 'train'}" for at, line in enumerate(lines)]
        path.write_text("\n".join([f"{head},split", *marked]) + "\n")

    result = deploy(tmp_path, sites(tmp_path, data), split=split)

    expected = simulate(data, split=split)
    tested = [len(rows) for rows in expected.setup.federation.test]
    assert tested == ([12, 12, 12] if split == "client_82" else [15, 15, 15])  # a fifth, or a fourth, of 60 rows
    assert result.summary["digest"] == expected.summary["digest"]
    assert [line["personal"] for line in result.history] == [line["personal"] for line in expected.history]


def test_files_cut_from_a_table_give_the_bits_of_its_simulation(tmp_path: Path) -> None:
    table = write_table(tmp_path / "all.csv")
    made = build_setup(Config(data=f"{table}?label=outcome&owner=hospital", partition="natural", **OPTIONS))
    export_sites(made.federation, tmp_path / "cut")

    result = deploy(tmp_path, sites(tmp_path, tmp_path / "cut", ".npz"))

    assert result.summary["digest"] == run_experiment(made).summary["digest"]


def test_a_site_keeps_the_preparation_with_its_model(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    expected = simulate(data, standardise="site").setup

    deploy(tmp_path, sites(tmp_path, data), standardise="site")

    found = open_site(tmp_path / "south")
    assert found.preparation("south") == expected.preparations.by_client["south"]
    raw, prepared = found.test_rows("south")
    assert torch.equal(found.prepared(raw.numpy(), "south"), prepared)


def test_statistics_that_leave_are_in_the_logs_of_site_and_server(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")

    deploy(tmp_path, sites(tmp_path, data))

    (sent,) = book(tmp_path / "west", "statistics")
    records = [record for record in audit_log.read(tmp_path / "run" / audit_log.NAME) if record.round == 0]
    assert [record.client for record in records] == list(HOSPITALS)
    assert (sent["bytes"], sent["sha256"]) == (records[2].bytes, records[2].sha256)
    assert json.loads((tmp_path / "run" / "preparation.json").read_bytes())["all clients"][0]["name"] == "age"


def test_a_site_can_keep_statistics_to_itself(tmp_path: Path) -> None:
    line = sites(tmp_path, write_folder(tmp_path / "data"), allow={"statistics": False})
    with pytest.raises(AtollError, match="keeps sums and categories of its columns"):
        deploy(tmp_path, line)
    assert not book(tmp_path / "north", "statistics")


def test_sites_without_statistics_take_part_where_nothing_has_to_be_agreed_on(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    line = sites(tmp_path, data, ".csv?label=outcome&ignore=colour", allow={"statistics": False})

    result = deploy(tmp_path, line, standardise="site")

    assert result.summary["rounds"] == 2
    assert {frame.kind for _, frame in line.asked} >= {"hello", "begin"}
    assert "statistics" not in {frame.kind for _, frame in line.asked}


def test_statistics_of_ever_new_divisions_are_refused(tmp_path: Path) -> None:
    """The differences between two splits tell about single rows."""
    line = sites(tmp_path, write_folder(tmp_path / "data"), allow={"statistics": 2})
    for seed in (0, 1, 1, 0):
        deploy(tmp_path / f"{seed}", line, seed=seed, rounds=1)
    with pytest.raises(AtollError, match="keeps sums and categories"):
        deploy(tmp_path / "2", line, seed=2, rounds=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"known": torch.tensor([99, 1, 1, 1])}, "more cells than rows"),
        ({"total": torch.tensor([1e30, 0, 0, 0], dtype=torch.float64)}, "larger than its squares allow"),
        ({"total": torch.tensor([float("nan"), 0, 0, 0], dtype=torch.float64)}, "NaN or infinity"),
        ({"squares": torch.full((4,), 1.7e308, dtype=torch.float64)}, "larger than any number"),
        ({"squares": torch.zeros(2, dtype=torch.float64)}, "shape"),
        ({"squares": None}, "other fields"),
        ({"rows": 7}, "7 rows, but"),
        ({"vocabulary": '{"age":{"x":1}}'}, "other columns"),
        ({"vocabulary": '{"colour":{"x":-1}}'}, "impossible counts"),
        ({"vocabulary": "[" * 9999}, "cannot be read"),
    ],
)
def test_impossible_statistics_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    line = sites(tmp_path, write_folder(tmp_path / "data"))
    line.sites["south"] = with_false_statistics(line.sites["south"], change)

    with pytest.raises(AtollError, match=f"Site 'south' sent statistics of columns that cannot be.*{said}"):
        deploy(tmp_path, line)


def test_statistics_that_are_no_statistics_are_refused(tmp_path: Path) -> None:
    line = sites(tmp_path, write_folder(tmp_path / "data"))
    answer = line.sites["south"]
    line.sites["south"] = lambda data: (
        pack(Frame("statistics", {}, b"none")) if unpack(data).kind == "statistics" else answer(data)
    )

    with pytest.raises(AtollError, match="Site 'south' sent no statistics of columns"):
        deploy(tmp_path, line)


UNKNOWN = [["shoe size", "number", None, None]]


@pytest.mark.parametrize(("columns", "code"), [(3, "request"), ([{"name": "age"}], "request"), (UNKNOWN, "data")])
def test_columns_that_no_honest_server_names_are_refused(columns: object, code: str, tmp_path: Path) -> None:
    """As a question for statistics, and as the announcement of a run."""
    line, asked = sites(tmp_path, write_folder(tmp_path / "data")), list[Frame]()
    deploy(tmp_path, line)
    asked = [frame for site, frame in line.asked if site == "south"]
    question = next(frame.head for frame in asked if frame.kind == "statistics")
    begin = next(frame.head for frame in asked if frame.kind == "begin") | {"run": "a" * 32}

    replies = [
        unpack(line.sites["south"](pack(frame)))
        for frame in (
            Frame("statistics", question | {"columns": columns}),
            Frame("begin", begin | {"tables": begin["tables"] | {"columns": columns}}),
            Frame("begin", begin | {"tables": None}),
        )
    ]

    assert [reply.code for reply in replies] == [code, code, "data"]


def test_columns_that_differ_are_named_with_both_sites(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    path = data / "west.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace("dose", "doses"), *lines[1:]]) + "\n")
    with pytest.raises(AtollError, match="Site 'north' has no column 'doses', which Site 'west' has"):
        deploy(tmp_path, sites(tmp_path, data))
    at = lines[0].split(",").index("dose")
    cells = [line.split(",") for line in lines[1:]]
    path.write_text("\n".join([lines[0], *(",".join([*row[:at], "much", *row[at + 1 :]]) for row in cells)]) + "\n")
    with pytest.raises(AtollError, match=r"Site 'west'.*(category|number).*schema|west\.csv line"):
        deploy(tmp_path, sites(tmp_path, data))


def test_site_with_arrays_among_sites_with_tables_is_named(tmp_path: Path) -> None:
    line = sites(tmp_path, write_folder(tmp_path / "data"))
    answer = line.sites["south"]

    def without_columns(data: bytes) -> bytes:
        reply = unpack(answer(data))
        return pack(reply._replace(head=reply.head | {"columns": []}) if reply.kind == "card" else reply)

    line.sites["south"] = without_columns

    with pytest.raises(AtollError, match="Site 'north' has a table with named columns and site 'south' has not"):
        deploy(tmp_path, line)


@pytest.mark.parametrize("standardise", ["all", "site"])
def test_sites_prepare_rows_as_scikit_learn_does_on_training_rows(standardise: str, tmp_path: Path) -> None:
    """On the training rows of all sites, or of each; nobody but this test ever has the rows of all."""
    data = write_folder(tmp_path / "data")
    deploy(tmp_path, sites(tmp_path, data), standardise=standardise)
    rows = {name: read_site(tmp_path / name).federation(Config(**OPTIONS)) for name in HOSPITALS}
    trained = {name: own.rows(own.train[0]) for name, own in rows.items()}
    numbers = {name: x[:, [0, 1, 3]] for name, x in trained.items()}  # age, dose and the date
    union = np.concatenate(list(numbers.values()))

    for name in HOSPITALS:
        columns = rows[name].dataset.columns
        levels = columns[2].levels
        preparation = open_site(tmp_path / name).preparation(name)
        assert preparation is not None
        found = preparation.apply(trained[name], columns)
        texts = [["none" if np.isnan(code) else levels[int(code)]] for code in trained[name][:, 2]]
        base = union if standardise == "all" else numbers[name]
        filled = SimpleImputer().fit(base).transform(numbers[name])
        scaled = StandardScaler().fit(base).transform(filled)
        coded = OneHotEncoder(categories=[["blue", "green", "grey", "red"]], handle_unknown="ignore").fit_transform(
            texts
        )
        np.testing.assert_allclose(found[:, [0, 1, 6]], scaled, atol=1e-6)
        np.testing.assert_array_equal(found[:, 2:6], coded.toarray())
