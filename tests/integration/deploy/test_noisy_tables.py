"""Raw tables at sites under differential privacy: the path of the simulation, the budget of the run and of the site."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.false_statistics import with_false_statistics
from support.hospital_tables import HOSPITALS, write_folder, write_schema
from support.local_sites import Wire, book

from atoll.config import Config
from atoll.core.serialization import decode
from atoll.data.tables.columns import Column
from atoll.data.tables.statistics import ColumnStatistics, StatisticsRequest, TableOptions
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.server.run import run_deployment
from atoll.deploy.server.table_handshake import ask_statistics
from atoll.deploy.site.config import read_site
from atoll.deploy.site.worker import local
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.privacy.accountant import compute_epsilon, compute_noise_multiplier
from atoll.utils import secure_random

OPTIONS: dict[str, Any] = {"method": "fedavg", "rounds": 2, "epochs": 1, "backend": "loop", "seed": 3, "dp": "8"}
LIMIT = {"epsilon": 8, "delta": 1e-5, "per": "year"}


class Federation:
    """Three hospitals with tables and one schema."""

    def __init__(self, folder: Path, **columns: Any):
        self.folder, self.data = folder, write_folder(folder / "data")
        self.schema = write_schema(folder / "schema.yaml", **columns)

    def simulated(self, **options: Any) -> Result:
        data = f"{self.data}?label=outcome&schema={self.schema}"
        return run_experiment(build_setup(Config(data=data, partition="natural", **OPTIONS | options)))

    def sites(self, **entries: Any) -> Wire:
        for name in HOSPITALS:
            (self.folder / name / "state").mkdir(parents=True, exist_ok=True)
            data = f"{self.data / name}.csv?label=outcome&schema={self.schema}"
            site = {"name": name, "data": data, "privacy": "off", "allow": {"scores": "exact"}} | entries
            (self.folder / name / "site.yaml").write_text(yaml.safe_dump(site))
        return Wire({name: local(read_site(self.folder / name)) for name in HOSPITALS})

    def deployed(self, line: Wire, run: str = "run", **options: Any) -> Result:
        config = OPTIONS | {"min_class_count": 0} | options
        sites: dict[str, Any] = {name: {} for name in HOSPITALS}
        job = DeploymentJob(run_dir=str(self.folder / run), config=config, sites=sites, report=False)
        return run_deployment(job, line, clock=line.clock)


def ask(line: Wire, site: str = "north", columns: tuple[Column, ...] | None = None, **options: Any) -> Frame:
    """Ask one site for statistics as a server does, without its checks."""
    wanted = read_site_columns(line) if columns is None else columns
    request = StatisticsRequest(wanted, TableOptions())
    asked = ask_statistics(Config(**OPTIONS | options), request)
    return unpack(line.sites[site](pack(asked)))


def read_site_columns(line: Wire) -> tuple[Column, ...]:
    hello = Frame("hello", ask_statistics(Config(**OPTIONS), StatisticsRequest((), TableOptions())).head)
    card = unpack(line.sites["north"](pack(hello))).head
    return tuple(
        Column(name, kind, tuple(levels or ()), levels is not None, bounds and (bounds[0], bounds[1]))
        for name, kind, levels, bounds in card["columns"]
    )


@pytest.mark.parametrize("options", [{}, {"missing": "indicator"}, {"standardise": "site", "missing": "all"}])
def test_sites_give_the_bits_of_a_simulation_where_the_noise_is_the_same(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of a tenth of a standard deviation everywhere, in place of the secure source."""
    monkeypatch.setattr(secure_random, "secure", lambda shape: torch.full(shape, 0.1, dtype=torch.float64))
    monkeypatch.setattr("atoll.privacy.policy.secure", secure_random.secure)
    federation = Federation(tmp_path)

    result = federation.deployed(federation.sites(), **options)

    expected = federation.simulated(**options)
    assert result.summary["digest"] == expected.summary["digest"]
    own = ("planned", "releases", "of_tables", "noise_multiplier", "spent")
    assert {name: result.summary["privacy"]["dp"][name] for name in own} == {
        name: expected.summary["privacy"]["dp"][name] for name in own
    }
    assert expected.summary["privacy"]["dp"]["of_tables"] == 1


def test_statistics_and_rounds_spend_the_budget_of_the_site(tmp_path: Path) -> None:
    """Three releases with one multiplier: all of epsilon 8, and no further run of any size."""
    federation = Federation(tmp_path)
    line = federation.sites(privacy={"dp": LIMIT, "min_class_count": 1})

    federation.deployed(line)

    costs = [json.loads(text) for text in (tmp_path / "west" / "state" / "privacy.jsonl").read_text().splitlines()]
    assert [entry["cost"] for entry in costs] == [compute_noise_multiplier(8, 1e-5, 3) ** -2] * 3
    assert compute_epsilon(1e-5, sum(entry["cost"] for entry in costs) ** 0.5) == pytest.approx(8)
    assert ask(line, "west", seed=4, dp="1").code == "rules"
    with pytest.raises(AtollError, match="own rules"):
        federation.deployed(line, "second", seed=4, dp="1")


def test_the_same_statistics_are_drawn_once_and_cost_once(tmp_path: Path) -> None:
    line = Federation(tmp_path).sites(privacy={"dp": LIMIT, "min_class_count": 1})

    first, again, other = ask(line), ask(line), ask(line, seed=4)

    assert first.body == again.body != other.body
    assert len((tmp_path / "north" / "state" / "privacy.jsonl").read_text().splitlines()) == 2
    assert [entry["bytes"] for entry in book(tmp_path / "north", "statistics")] == [len(first.body)] * 3


def test_noisy_statistics_hide_the_number_of_rows_and_categories(tmp_path: Path) -> None:
    sent = decode(ColumnStatistics, ask(Federation(tmp_path).sites()).body)
    assert (sent.rows, sent.vocabulary, sent.class_names) == (0, "{}", "[]")
    assert sent.known is not None
    assert sent.known.dtype == torch.float64


def test_statistics_without_noise_are_refused_by_a_site_with_a_limit(tmp_path: Path) -> None:
    line = Federation(tmp_path).sites(privacy={"dp": LIMIT})
    assert ask(line, dp=None).code == "rules"
    assert not book(tmp_path / "north", "statistics")


def test_bounds_of_the_server_s_choice_are_refused(tmp_path: Path) -> None:
    line = Federation(tmp_path).sites()
    columns = tuple(c if c.bounds is None else replace(c, bounds=(40.0, 41.0)) for c in read_site_columns(line))
    assert ask(line, columns=columns).code == "data"


@pytest.mark.parametrize("column", ["age", "colour"])
def test_site_refuses_columns_that_it_does_not_declare(column: str, tmp_path: Path) -> None:
    """A server that leaves out the check of its own options gets nothing either."""
    line = Federation(tmp_path, **{column: None}).sites()
    assert ask(line).code == "data"
    with pytest.raises(AtollError, match=f"column '{column}'.*schema"):
        Federation(tmp_path, **{column: None}).deployed(line)


def test_statistics_with_noise_can_be_kept_at_the_site(tmp_path: Path) -> None:
    line = Federation(tmp_path).sites(allow={"statistics": False})
    assert ask(line).code == "statistics"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"total": torch.full((4,), float("nan"), dtype=torch.float64)}, "NaN"),
        ({"squares": torch.full((4,), 1e308, dtype=torch.float64)}, "no sum can be"),
        ({"known": torch.tensor([1, 1, 1, 1])}, "int64"),
        ({"rows": 60}, "without noise"),
        ({"vocabulary": '{"colour":{"red":3}}'}, "without noise"),
        ({"squares": None}, "other fields"),
    ],
)
def test_impossible_noisy_statistics_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    line = federation.sites()
    line.sites["south"] = with_false_statistics(line.sites["south"], change)

    with pytest.raises(AtollError, match=f"Site 'south' sent statistics of columns that cannot be.*{said}"):
        federation.deployed(line)
