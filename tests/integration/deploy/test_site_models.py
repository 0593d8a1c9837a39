"""After a run between sites: the site's model in use by the common commands, and the audit of what the server got."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import small_runs
from support.local_sites import SMALL, Sites, babbling, book

from atoll.core.scores import accuracy
from atoll.deploy.site.models import open_site, personal_model
from atoll.errors import AtollError
from atoll.inference import export
from atoll.storage import audit_log


@pytest.fixture(scope="module")
def ditto(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sites, Any]:
    sites = Sites(tmp_path_factory.mktemp("ditto"), small_runs.setup("ditto", **SMALL))
    return sites, sites.run()


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_site_predicts_its_test_rows_by_its_own_model(ditto: tuple[Sites, Any], atoll: Any) -> None:
    """As good as the run says."""
    sites, result = ditto
    shown = json.loads(atoll("predict", sites.folder / "1", "--json").stdout)
    rows = sites.setup.pool.test[1]
    chances = torch.tensor([list(row["probabilities"].values()) for row in shown])
    expected = next(row["accuracy"] for row in result.clients if (row["round"], row["client"]) == (2, "1"))
    assert accuracy(chances, rows.y) == expected
    assert [row["row"] for row in shown][:2] == ["test row 0", "test row 1"]


def test_a_site_predicts_rows_of_a_file(ditto: tuple[Sites, Any], atoll: Any, tmp_path: Path) -> None:
    sites, _ = ditto
    data = sites.setup.federation.dataset
    np.save(tmp_path / "rows.npy", data.x_train[:2])
    shown = json.loads(atoll("predict", sites.folder / "0", tmp_path / "rows.npy", "--json").stdout)
    found = open_site(sites.folder / "0")
    with torch.no_grad():
        expected = found.personal("0")(found.prepared(data.x_train[:2])).softmax(1)
    for row, chances in zip(shown, expected.tolist(), strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(chances, abs=1e-6)


def test_a_site_has_no_other_client_s_model(ditto: tuple[Sites, Any], refused: Any) -> None:
    assert "client '1'" in refused("predict", ditto[0].folder / "0", "--client", "1")


def test_a_run_directory_needs_to_be_told_whose_model(atoll: Any, refused: Any, tmp_path: Path) -> None:
    atoll("run", "fedavg", "--data", "digits", "--rows", 200, "--clients", 2, "--rounds", 1, "--epochs", 1,
          "--out", tmp_path / "run", "--quiet")  # fmt: skip
    assert "--client with one of 0, 1" in refused("predict", tmp_path / "run")


def test_a_site_s_model_is_taken_away(ditto: tuple[Sites, Any], atoll: Any) -> None:
    sites, _ = ditto
    (told,) = json.loads(atoll("export", sites.folder / "2", "--round", "last", "--json").stdout)
    assert told["folder"] == str(sites.folder / "2" / "export" / "2" / "safetensors")
    assert (told["client"], told["method"], told["round"]) == ("2", "ditto", 2)
    assert told["architecture"] == sites.setup.pool.models["2"].name
    assert told["checked"]["rows"] == sites.setup.pool.test.size(2)
    found = open_site(sites.folder / "2", which="last")
    net = found.module("2")
    read = export.FORMATS["safetensors"][2](Path(told["folder"]) / told["file"], net)
    x = sites.setup.pool.test[2].x
    with torch.no_grad():
        assert torch.equal(read(x), found.personal("2")(x))


def test_damaged_model_of_a_site_is_named(tmp_path: Path) -> None:
    sites = Sites(tmp_path, small_runs.setup("fedavg", **SMALL))
    sites.run()
    for path in (tmp_path / "0" / "state" / "runs").glob("*/*/state.safetensors"):
        path.write_bytes(b"damaged")

    with pytest.raises(AtollError, match="Cannot read the model of run"):
        open_site(tmp_path / "0")


def test_model_of_a_method_that_predicts_by_several_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path, small_runs.setup("fedapen", **SMALL))
    sites.run()

    with pytest.raises(AtollError, match="predicts by more than one model"):
        personal_model(tmp_path / "0")


# -- the audit --------------------------------------------------------------------------------------------------------


def test_the_audit_of_a_deployed_run_lists_what_the_sites_say_they_sent(
    atoll: Any, refused: Any, tmp_path: Path
) -> None:
    """Two exchanges in each of two rounds; the run is continued after the first. Both sides wrote down the same."""
    sites = Sites(tmp_path, small_runs.setup("fedpd", **SMALL))
    sites.run(config={"rounds": 1})
    sites.run()
    listed = json.loads(atoll("audit", tmp_path / "run", "--json").stdout)
    assert len(listed) == 2 * 2 * 3
    for name in sites.names:
        sent = [{k: entry[k] for k in ("round", "exchange", "bytes", "sha256")} for entry in book(tmp_path / name)]
        assert sent == [
            {k: r[k] for k in ("round", "exchange", "bytes", "sha256")} for r in listed if r["client"] == name
        ]
    assert {record["verdict"] for record in listed} == {"accepted"}
    checked = json.loads(atoll("audit", tmp_path / "run", "--verify", "--json").stdout)
    assert (checked["records"], checked["finished"]) == (12, True)
    path = tmp_path / "run" / audit_log.NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3].replace(listed[3]["sha256"], "0" * 64), *lines[4:]]))
    assert "line 4 was changed" in refused("audit", tmp_path / "run", "--verify")


def test_the_audit_of_a_deployed_run_lists_what_was_rejected(atoll: Any, tmp_path: Path) -> None:
    """Bytes that are no payload have a size and a digest all the same."""
    sites = Sites(tmp_path, small_runs.setup("fedavg", **SMALL))
    line = sites.line()
    line.sites["1"] = babbling(line.sites["1"])
    sites.run(line)
    listed = json.loads(atoll("audit", tmp_path / "run", "--json").stdout)
    assert [(r["client"], r["bytes"]) for r in listed if r["verdict"] == "rejected"] == [("1", 6), ("1", 6)]
    assert len(listed) == 6
    atoll("audit", tmp_path / "run", "--verify")
