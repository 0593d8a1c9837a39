"""What leaves a site: its own gate, on unless it says otherwise, and budgets that are spent where the rows are."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import small_runs
from support.local_sites import SMALL, Sites, Wire, book, personal
from support.paths import ROOT

from atoll.config import Config
from atoll.core.contract import contract
from atoll.core.serialization import decode
from atoll.deploy.server.job import DeploymentJob
from atoll.deploy.site.config import read_site
from atoll.deploy.site.privacy_rules import OFF, SitePrivacyRules, read_rules
from atoll.deploy.site.rules import SiteRules
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.errors import AtollError

GATED = {"min_class_count": 10}


def guarded(folder: Path, method: str, rules: Any = None, **changes: Any) -> Sites:
    """Sites with such rules; None stands for a site.yaml that says nothing."""
    sites = Sites(folder, small_runs.setup(method, **SMALL | changes))
    for name in sites.names:
        sites.write(name, privacy=rules)
    return sites


# -- rules ------------------------------------------------------------------------------------------------------------


def test_the_gate_is_on_unless_the_site_says_otherwise() -> None:
    assert read_rules(None, "x") == read_rules(True, "x") == SitePrivacyRules(10, None)
    assert read_rules(False, "x") == read_rules("off", "x") == OFF == SitePrivacyRules(0, "client")
    assert read_rules({"cov_source": "diag"}, "x") == SitePrivacyRules(10, "diag")
    assert DeploymentJob("r", {}, {"a": "key"}).configured().min_class_count == 10


def test_off_is_read_from_yaml_as_people_write_it(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: a\ndata: b\nprivacy: off\n")
    assert read_site(tmp_path).privacy == OFF


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"epsilon": 1}, "epsilon"),
        ({"min_class_count": -1}, "0 or more"),
        ({"min_class_count": "ten"}, "0 or more"),
        ({"cov_source": "mean"}, "means"),
        ([10], "min_class_count: 10"),
    ],
)
def test_rules_that_nobody_can_keep_are_told(value: Any, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        read_rules(value, "'site.yaml'")


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        ({}, SitePrivacyRules(), (10, "means")),
        ({"min_class_count": 20}, SitePrivacyRules(), (20, "means")),
        ({"min_class_count": 5}, SitePrivacyRules(30), (30, "means")),
        ({"cov_source": "diag"}, SitePrivacyRules(3, "none"), (3, "none")),
        ({"cov_source": "diag"}, OFF, (0, "diag")),
        ({}, OFF, (0, "client")),
    ],
)
def test_of_two_rules_the_stricter_holds(
    asked: dict[str, Any], own: SitePrivacyRules, expected: tuple[int, str]
) -> None:
    combined = own.combined(Config(method="dcpfl", **asked), small_runs.setup("dcpfl").method)
    assert (combined.min_class_count, combined.cov_source) == expected


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dcpfl", "fedproto", "fedavg"])
def test_the_same_rules_in_a_simulation_give_the_same_bits(method: str, tmp_path: Path) -> None:
    sites = guarded(tmp_path, method, **GATED)
    result, expected = sites.run(), small_runs.run(method, **SMALL, **GATED)
    assert result.summary["digest"] == expected.summary["digest"]
    assert personal(result) == personal(expected)
    if method != "fedavg":
        assert result.summary["digest"] != small_runs.run(method, **SMALL).summary["digest"]


def test_the_floor_of_a_site_holds_whatever_the_server_says(tmp_path: Path) -> None:
    """The server asks for no gate at all: uploads name no class of which the site has fewer than 10 rows."""
    sites = guarded(tmp_path, "fedproto")
    replies: list[bytes] = []
    line = sites.line()
    answer = line.sites["0"]

    def listening(data: bytes) -> bytes:
        replies.append(answer(data))
        return replies[-1]

    line.sites["0"] = listening
    result = sites.run(line)
    assert result.summary["digest"] == small_runs.run("fedproto", **SMALL, **GATED).summary["digest"]
    upload = next(reply for reply in map(unpack, replies) if reply.kind == "upload")
    held = decode(contract(sites.setup.method).exchanges[0].upload, upload.body).n
    rows = sites.setup.pool.client("0").members().sum(0)
    assert ((rows > 0) & (rows < 10)).any()
    assert ((held > 0) == (rows >= 10)).all()


def test_what_was_kept_back_is_known_at_the_site_alone(tmp_path: Path) -> None:
    sites = guarded(tmp_path, "fedproto", **GATED)
    result, expected = sites.run(), small_runs.run("fedproto", **SMALL, **GATED)
    told = [entry["privacy"] for name in sites.names for entry in book(sites.folder / name)]
    gate = expected.summary["privacy"]["gate"]
    assert gate["withheld"] > 0
    for field in ("classes", "withheld", "rows", "rows_withheld"):
        assert sum(entry[field] for entry in told) == gate[field]
    assert "withheld" not in result.summary["privacy"]["gate"]
    assert result.summary["privacy"]["gate"]["by"] == "the sites"
    assert not any("withheld" in json.dumps(line) for line in result.history)


def test_a_record_does_not_say_that_nothing_was_kept_back(tmp_path: Path) -> None:
    (said,) = guarded(tmp_path, "fedproto").run().summary["privacy"]["statement"]
    assert "sites hold back what their own rules say" in said


def test_a_site_that_keeps_its_covariances_says_so_before_anything_runs(tmp_path: Path) -> None:
    """Covariances from means are another method, so the server has to ask for them."""
    sites = guarded(tmp_path, "dcpfl", "off")
    sites.write("1", privacy={"min_class_count": 10})
    line = sites.line()
    with pytest.raises(AtollError, match=r"Site '1' cannot take part: keeps covariances .* --cov-source means"):
        sites.run(line)
    assert {frame.kind for _, frame in line.asked} == {"hello"}
    result = sites.run(config={"cov_source": "means"}, min_clients=3)
    assert result.summary["status"] == "finished"


def test_rules_that_were_tightened_during_a_run_hold_at_once(tmp_path: Path) -> None:
    sites = guarded(tmp_path, "dcpfl", "off")
    sites.run(config={"rounds": 1})
    sites.write("1", privacy=None)
    with pytest.raises(AtollError, match="Site '1' cannot take part: keeps covariances"):
        sites.run()


# -- budgets ----------------------------------------------------------------------------------------------------------

DP = {"dp": "8"}


@pytest.mark.parametrize("method", ["fedavg", "dcpfl"])
def test_differential_privacy_at_sites_gives_the_bits_of_the_simulation(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise of a known seed at the sites, which no server can ask for."""
    read = SiteRules.read_config
    monkeypatch.setattr(SiteRules, "read_config", lambda *args: replace(read(*args), dp_seed=5))
    sites = guarded(tmp_path, method, "off", **DP)
    result, expected = sites.run(), small_runs.run(method, **SMALL, **DP, dp_seed=5)
    assert result.summary["digest"] == expected.summary["digest"]
    spent = [entry["privacy"]["epsilon"] for entry in book(sites.folder / "0")]
    assert spent == [line["privacy"]["epsilon"] for line in expected.history]


def journal(sites: Sites, name: str) -> list[str]:
    (path,) = (sites.folder / name / "state" / "runs").glob("*/privacy.jsonl")
    return path.read_text().splitlines()


def test_a_request_that_comes_twice_is_released_and_paid_for_once(tmp_path: Path) -> None:
    """With noise that nobody can draw again: the second reply is the first."""
    sites = guarded(tmp_path, "fedavg", "off", dp="8")
    seen: set[int] = set()

    def twice(site: str, frame: Frame) -> str:
        if (site, frame.kind) == ("0", "exchange") and frame.head["round"] not in seen:
            seen.add(frame.head["round"])
            first(pack(frame))  # carried out, but the reply is lost
            return "offline"
        return ""

    line: Wire = sites.line(twice)
    first = line.sites["0"]
    sites.run(line)
    entries = book(sites.folder / "0")
    assert [entry["again"] for entry in entries] == [False, True, False, True]
    assert entries[0]["sha256"] == entries[1]["sha256"] != entries[2]["sha256"]
    assert len(journal(sites, "0")) == 2


def test_a_budget_that_is_spent_lets_nothing_more_out(tmp_path: Path) -> None:
    """What the journal of a site says counts, also for a worker that has just been started."""
    sites = guarded(tmp_path, "fedavg", "off", **DP)
    line = sites.line()

    def spend(site: str, frame: Frame) -> str:
        if (site, frame.kind, frame.head.get("round")) == ("1", "exchange", 1):
            (path,) = (tmp_path / "1" / "state" / "runs").glob("*/privacy.jsonl")
            path.write_text("\n".join([*path.read_text().splitlines()] * 2) + "\n")
            line.sites["1"] = sites.line().sites["1"]
        return ""

    line.fate = spend
    result = sites.run(line, min_clients=2)
    assert result.history[-1]["dropped"] == [{"client": "1", "round": 2, "why": "budget"}]
    assert len(book(sites.folder / "1")) == 1


# -- roles ------------------------------------------------------------------------------------------------------------


def test_a_site_with_a_gate_refuses_a_method_whose_upload_declares_no_roles(tmp_path: Path) -> None:
    """The server asks for no gate, so the site's own rules decide, before anything leaves."""
    example = ROOT / "examples" / "new_method.py"
    mine = tmp_path / "mine.py"
    mine.write_text(re.sub(r", role=Role\.\w+", "", example.read_text()))
    sites = guarded(tmp_path / "sites", str(mine), "off")
    for name in sites.names:
        (sites.folder / name / "mine.py").write_text(mine.read_text())
        sites.write(name, methods=["mine.py"])
    sites.write("1", privacy=None)
    line = sites.line()

    with pytest.raises(AtollError, match=r"Site '1' cannot take part: keeps uploads .* Declare a role"):
        sites.run(line)

    assert {frame.kind for _, frame in line.asked} == {"hello", "begin"}
    sites.write("1", privacy="off")
    assert sites.run(force=True).summary["status"] == "finished"
