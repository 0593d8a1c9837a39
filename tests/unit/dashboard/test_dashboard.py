"""The dashboard without a browser: reading runs, serving pages, access control, and the command."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.run_files import checkpoint, make_comparison, make_run

import atoll
from atoll.dashboard import server
from atoll.dashboard.app import make_app
from atoll.dashboard.artifacts import contents
from atoll.dashboard.class_matrices import matrices, relations
from atoll.dashboard.comparison import compare
from atoll.dashboard.detail import curves, detail, even
from atoll.dashboard.run_index import RunIndex, find
from atoll.errors import AtollError
from atoll.storage import audit_log
from atoll.storage.audit_log import AuditLog
from atoll.storage.run_dir import RunDir, holder
from atoll.storage.tolerant_reader import PartialRun, look

HOST = "127.0.0.1:8642"
TOKEN = "a-token-for-tests"


def unfinished(path: Path, rounds: int = 3, planned: int = 12, **options: Any) -> Path:
    """A run without a summary: three rounds of a second each are done."""
    config = {"method": "fedavg", "data": "digits", "partition": "iid", "rounds": planned, "terms": ["dw"]}
    make_run(path, config=config, **options)
    (path / "summary.json").unlink()
    return path


def row_of(root: Path, name: str) -> dict[str, Any]:
    return next(row for row in RunIndex(root).rows() if row["name"] == name)


def shown(path: Path) -> dict[str, Any]:
    catalogue = RunIndex(path)
    (row,) = catalogue.rows()
    return detail(row, catalogue.seen(row["id"]))


# -- finding and listing ----------------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_and_not_inside_runs_hidden_folders_or_behind_links(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("one", "papers/dcpfl/table1/setting/method-seed0", ".trash/two"):
        make_run(root / name)
    make_run(root / "one" / "export" / "copy")
    make_run(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert [path.relative_to(root).as_posix() for path in sorted(find(root))] == [
        "one",
        "papers/dcpfl/table1/setting/method-seed0",
    ]
    assert [row["name"] for row in RunIndex(root / "one").rows()] == ["one"]


def test_finished_run_is_listed_with_its_summary(tmp_path: Path) -> None:
    make_run(tmp_path / "a", generic=0.55, config={"rounds": 9}, status="diverged")
    row = row_of(tmp_path, "a")
    expected = {
        "method": "dcpfl", "data": "digits", "clients": 4, "done": 3, "planned": 9, "status": "diverged",
        "score": 0.7, "generic": 0.55, "up": 3000, "down": 1500, "seconds": 75.24, "left": None, "problems": [],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_runs_are_alike_if_their_seeds_alone_differ(tmp_path: Path) -> None:
    for name, seed, lr in (("a", 0, 0.1), ("b", 1, 0.1), ("c", 1, 0.2)):
        make_run(tmp_path / name, seed=seed, config={"seed": seed, "lr": lr})

    a, b, c = (row_of(tmp_path, name)["alike"] for name in "abc")

    assert a == b
    assert a != c


def test_list_has_the_date_of_the_first_session(tmp_path: Path) -> None:
    sessions = [{"date": "2026-02-03T04:05:06Z"}, {"date": "2026-03-03T04:05:06Z"}]
    path = make_run(tmp_path / "a")
    (path / "environment.json").write_text(json.dumps({"sessions": sessions}))
    os.mkfifo(make_run(tmp_path / "b") / "environment.json")  # reading it would wait for ever

    assert row_of(tmp_path, "a")["began"] == "2026-02-03T04:05:06Z"
    assert row_of(tmp_path, "b")["began"] is None


def test_an_unfinished_run_is_running_while_it_is_locked_and_interrupted_afterwards(tmp_path: Path) -> None:
    """Three of twelve rounds took three seconds, so nine are left. Best by validation is round 2, with 0.7."""
    path, catalogue = unfinished(tmp_path / "a"), RunIndex(tmp_path)
    with RunDir(path):
        (row,) = catalogue.rows()
        assert (row["status"], row["done"], row["planned"], row["left"]) == ("running", 3, 12, 9.0)
        assert (row["method"], row["score"], row["up"]) == ("fedavg+dw", 0.7, 3000)
    (row,) = catalogue.rows()
    assert (row["status"], row["left"]) == ("interrupted", None)


def test_reading_a_run_does_not_take_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unfinished(tmp_path / "a")
    with RunDir(path):
        pass
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("locked"))
    assert row_of(tmp_path, "a")["status"] == "interrupted"


def test_process_with_a_reused_id_does_not_count_as_running(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(str(os.getppid()))
    assert holder(tmp_path) is None
    with RunDir(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_metrics_line_is_shown_once_it_is_complete(tmp_path: Path) -> None:
    path, catalogue = unfinished(tmp_path / "a"), RunIndex(tmp_path)
    metrics = path / "metrics.jsonl"
    *_, last = metrics.read_text().splitlines()
    line = json.dumps(json.loads(last) | {"round": 4})
    with RunDir(path):
        with metrics.open("a") as file:
            file.write(line[:40])
        assert [(r["status"], r["done"]) for r in catalogue.rows()] == [("running", 3)]
        with metrics.open("a") as file:
            file.write(line[40:] + "\n")
        assert [(r["status"], r["done"]) for r in catalogue.rows()] == [("running", 4)]


def test_unchanged_run_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a")
    catalogue = RunIndex(tmp_path)
    before = catalogue.rows()
    monkeypatch.setattr("atoll.dashboard.run_index.look", lambda *_: pytest.fail("read again"))
    assert catalogue.rows() == before


# -- damage -----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half a summary": lambda p: os.truncate(p / "summary.json", 50),
    "a summary of nothing": lambda p: (p / "summary.json").write_text("[]"),
    "an endless number": lambda p: (p / "summary.json").write_text('{"rounds": 1e999}'),
    "deep nesting": lambda p: (p / "summary.json").write_text("[" * 100_000),
    "a torn line": lambda p: (p / "metrics.jsonl").write_text("{\n" + (p / "metrics.jsonl").read_text()),
    "bytes": lambda p: (p / "metrics.jsonl").write_bytes(b"\xff\xfe\n"),
    "no YAML": lambda p: (p / "config.yaml").write_text("a: [1"),
    "another program's YAML": lambda p: (p / "config.yaml").write_text("services: {}"),
    "no table": lambda p: (p / "clients.parquet").write_bytes(b"PAR1"),
    "crooked holdings": lambda p: (p / "holdings.json").write_text('{"name": "x"}'),
    "a pipe": lambda p: ((p / "metrics.jsonl").unlink(), os.mkfifo(p / "metrics.jsonl")),
    "a link": lambda p: ((p / "config.yaml").unlink(), (p / "config.yaml").symlink_to("../good/config.yaml")),
    "a folder": lambda p: ((p / "summary.json").unlink(), (p / "summary.json").mkdir()),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_a_damaged_run_is_listed_with_its_error_and_can_be_opened(harm: str, tmp_path: Path) -> None:
    make_run(tmp_path / "bad")
    make_run(tmp_path / "good")
    DAMAGE[harm](tmp_path / "bad")
    bad, good = RunIndex(tmp_path).rows()
    assert (bad["status"], good["status"]) == ("damaged", "finished")
    assert bad["problems"]
    client = Client(tmp_path)
    for address in (f"/api/runs/{bad['id']}", f"/api/runs/{bad['id']}/contents", f"/api/compare?ids={bad['id']}"):
        answer = client.get(address)
        assert answer.status_code == 200 or answer.json()["error"], address


def test_readable_parts_of_a_damaged_run_are_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    DAMAGE["a torn line"](path)
    seen = look(path, None)
    assert len(seen.run.metrics) == 3
    assert [problem for problem in seen.problems if "metrics.jsonl, line 1, is damaged" in problem]


def test_number_too_large_for_a_float_is_ignored(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", sent=(1000, 10**400))
    assert shown(path)["traffic"] == {"rounds": [1, 2, 3], "up": [1000] * 3, "down": [0] * 3}


def test_empty_or_missing_folder_has_no_runs(tmp_path: Path) -> None:
    catalogue = RunIndex(tmp_path / "gone")
    assert catalogue.rows() == []
    with pytest.raises(AtollError, match="no longer exists"):
        catalogue.seen("0" * 12)


# -- one run ----------------------------------------------------------------------------------------------------------


def test_curves_have_a_value_for_each_round_and_kind_of_model(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path / "a", generic=0.55, validation=(0.4, None, 0.5)))["curves"]
    assert found["rounds"] == [1, 2, 3]
    assert found["measures"]["accuracy"] == {"personal": [0.5, 0.7, 0.6], "generic": [0.55] * 3}
    assert found["measures"]["val"]["personal"] == [0.4, None, 0.5]


def test_training_loss_is_a_curve_beside_the_losses_of_models() -> None:
    result = atoll.run("fedavg", data="digits", clients=3, rounds=2, epochs=1)

    found = curves(result.to_run())["measures"]["loss"]

    assert found["training"] == [line["training"]["loss"] for line in result.history]
    assert found["personal"] == [line["personal"]["post"]["loss"] for line in result.history]


def test_traffic_is_the_difference_between_consecutive_lines(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path / "a", sent=(1000, 500)))["traffic"]
    assert found == {"rounds": [1, 2, 3], "up": [1000] * 3, "down": [500] * 3}


def test_clients_have_their_latest_accuracy_in_natural_order(tmp_path: Path) -> None:
    """Client i is i percent better than the first one, which has 0.6 in the last round."""
    found = shown(make_run(tmp_path / "a", clients=("10", "9", "north")))["clients"]
    assert [name for name, _ in found["latest"]] == ["9", "10", "north"]
    assert [round(v, 2) for _, v in found["latest"]] == [0.61, 0.60, 0.62]
    assert np.round(found["table"][0], 2).tolist() == [0.51, 0.71, 0.61]


def test_clients_of_a_running_run_come_from_its_latest_checkpoint(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "a")
    kept = path / "checkpoints" / "round-000003"
    kept.mkdir(parents=True)
    (path / "clients.parquet").rename(kept / "clients.parquet")
    assert len(shown(path)["clients"]["latest"]) == 4


def test_incidents_are_counted_and_listed(tmp_path: Path) -> None:
    refused = {"client": "a", "round": 2, "field": "params", "reason": "holds NaN"}
    path = make_run(tmp_path / "a", rejected={2: [refused, "b"]})
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[2] |= {"dropped": [{"client": "c", "round": 3, "why": "late"}], "excluded": ["a"]}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = shown(path)["incidents"]
    assert found["counts"] == {"rejected": 2, "dropped": 1, "not_finite": 0}
    assert found["excluded"] == ["a"]
    assert [(one["kind"], one["client"], one["why"]) for one in found["latest"]] == [
        ("dropped", "c", "late"), ("rejected", "b", ""), ("rejected", "a", "params: holds NaN"),
    ]  # fmt: skip


def test_privacy_budget_is_shown_if_the_run_has_one(tmp_path: Path) -> None:
    path = make_run(
        tmp_path / "a", config={"dp": "8:1e-5"}, privacy={"dp": {"epsilon": 8}, "statement": ["Only rows."]}
    )
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    spent = [line | {"privacy": {"epsilon": float(line["round"])}} for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spent))
    budget = {"allowed": "8:1e-5", "spent": [[1, 1.0], [2, 2.0], [3, 3.0]], "statement": ["Only rows."]}
    assert shown(path)["privacy"] == budget
    shutil.rmtree(path)
    assert shown(make_run(tmp_path / "a"))["privacy"] is None


def test_even_choice_includes_first_and_last() -> None:
    few = even(range(1000))
    assert (len(few), few[0], few[-1]) == (150, 0, 999)
    assert {b - a for a, b in pairwise(few)} <= {6, 7}
    assert even("abc") == ["a", "b", "c"]


# -- what else is in its folder ---------------------------------------------------------------------------------------


def test_soft_labels_and_class_relations_are_read_from_the_latest_checkpoint(tmp_path: Path) -> None:
    """With W = I, W W^T = I, and the softmax of (1, 0) is (e, 1) / (e + 1)."""
    path = make_run(tmp_path / "a", config={"method": "feddw"}, clients=("a", "b", "c"))
    omega = np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)
    checkpoint(path, {"x": np.zeros((2, 2), np.float32)}, 2)
    held = {"extra/DW.omega": omega, "params/head.weight": np.eye(2, dtype=np.float32)}
    checkpoint(path, held | {"params/body.weight": omega, "c": np.zeros((3, 3), np.float32)})
    found = matrices(look(path, None).run)
    by_name = {m["name"]: m for m in found["matrices"]}
    assert found["round"] == 3
    assert set(by_name) == {"extra/DW.omega", "params/head.weight", "c"}
    assert by_name["extra/DW.omega"]["values"] == omega.tolist()
    assert by_name["extra/DW.omega"]["labels"] == ["cat", "dog"]
    assert by_name["c"]["labels"] == ["a", "b", "c"]
    assert "SL" in by_name["extra/DW.omega"]["title"]
    e = np.e / (np.e + 1)
    np.testing.assert_allclose(by_name["params/head.weight"]["values"], [[e, 1 - e], [1 - e, e]])


def test_class_relations_of_large_weights_do_not_overflow() -> None:
    assert np.isfinite(relations(np.full((2, 3), 1e6, np.float32))).all()


def test_damaged_checkpoint_is_reported_and_the_rest_of_the_run_is_shown(tmp_path: Path) -> None:
    folder = checkpoint(make_run(tmp_path / "a"), {"x": np.zeros(2, np.float32)})
    (folder / "server.safetensors").write_bytes(b"no")
    client = Client(tmp_path)
    (row,) = client.get("/api/runs").json()["runs"]
    found = client.get(f"/api/runs/{row['id']}/contents").json()
    assert "server.safetensors is damaged" in found["heat"]["problem"]
    assert found["checkpoints"][0]["files"][0] == {"name": "server.safetensors", "sha256": "ab" * 32, "size": 2}


def test_the_contract_of_an_installed_method_is_shown_and_no_method_file_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    make_run(tmp_path / "a", config={"method": "fedavg:some"})
    make_run(tmp_path / "b", config={"method": str(trap)})
    client = Client(tmp_path)
    a, b = client.get("/api/runs").json()["runs"]
    fields = client.get(f"/api/runs/{a['id']}/contents").json()["contract"]
    assert ("up", "params") in {(f["way"], f["field"]) for f in fields}
    assert client.get(f"/api/runs/{b['id']}/contents").json()["contract"] is None
    assert not (tmp_path / "sprung").exists()


def test_audit_log_is_listed_and_a_change_is_reported(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    log = AuditLog(path / audit_log.NAME)
    log.add(1, 0, "a", 100, "cd" * 32)
    log.add(1, 0, "b", 7, "", ("params", "holds NaN"))
    found = contents(look(path, None).run)["audit"]
    assert found["sound"]
    assert [(r["client"], r["bytes"], r["verdict"]) for r in found["latest"]] == [
        ("b", 7, "rejected: params holds NaN"),
        ("a", 100, "accepted"),
    ]
    text = (path / audit_log.NAME).read_text()
    (path / audit_log.NAME).write_text(text.replace('"bytes":100', '"bytes":101'))
    found = contents(look(path, None).run)["audit"]
    assert not found["sound"]
    assert "line 1" in found["verdict"]


def test_manifests_of_exported_models_and_events_of_sites_are_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    folder = path / "export" / "3" / "onnx"
    folder.mkdir(parents=True)
    manifest = {"client": "3", "form": "onnx", "file": "../../../config.yaml", "checked": {"largest_gap": 0.5}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (path / "events.jsonl").write_text('{"time": 5, "event": "lost", "text": "west"}\nhalf')
    found = contents(look(path, None).run)
    assert [(e["client"], e["folder"], e["gap"]) for e in found["exports"]] == [("3", "export/3/onnx", 0.5)]
    assert found["exports"][0]["size"] is None  # the file it names is not beside it
    assert found["events"] == [{"time": 5, "event": "lost", "text": "west"}]


# -- comparing --------------------------------------------------------------------------------------------------------


def chosen(root: Path) -> dict[str, PartialRun]:
    catalogue = RunIndex(root)
    return {row["id"]: catalogue.seen(row["id"]) for row in catalogue.rows()}


def test_comparison_groups_seeds_and_reports_their_spread(tmp_path: Path) -> None:
    """By validation 0.90, 0.92 and 0.97: mean 93.00 %, deviation sqrt((9 + 1 + 16) / 2) = 3.61."""
    make_comparison(tmp_path)
    found = compare(chosen(tmp_path))
    assert [group["name"] for group in found["groups"]] == ["dcpfl", "local", "fedavg"]
    first = found["groups"][0]
    assert (first["seeds"], len(first["runs"])) == ([0, 1, 2], 3)
    assert first["cells"][0] == "93.00 ± 3.61"
    assert first["leads"][0]
    assert first["curves"]["accuracy"]["personal"]["mean"] == pytest.approx([0.5, 0.7, 0.6])
    assert first["bytes"] == {1: 1500, 2: 3000, 3: 4500}
    assert found["warnings"] == []
    assert [line["name"] for line in found["baseline"]] == ["majority"]
    assert found["notes"][0].startswith("p: two-sided paired t-test")


def test_averages_of_personal_models_are_marked(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", generic=0.5)
    make_run(tmp_path / "b", "local", generic=0.4, source="average")

    found = compare(chosen(tmp_path))

    assert {group["name"]: group["averaged"] for group in found["groups"]} == {"fedavg": False, "local": True}
    assert found["notes"][0].startswith("~ the average of the personal models")
    assert [row_of(tmp_path, name)["averaged"] for name in ("a", "b")] == [False, True]


def test_bands_reach_from_the_lowest_seed_to_the_highest_over_the_rounds_that_all_have_reached(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, accuracies=(0.2, 0.4))
    make_run(tmp_path / "b", seed=1, accuracies=(0.4, 0.8, 0.9), config={"rounds": 2})
    (group,) = compare(chosen(tmp_path))["groups"]
    curve = group["curves"]["accuracy"]["personal"]
    assert curve["rounds"] == [1, 2]
    assert (curve["low"], curve["high"]) == ([0.2, 0.4], [0.4, 0.8])
    assert curve["mean"] == pytest.approx([0.3, 0.6])


def test_runs_in_different_settings_are_compared_with_a_warning(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data="cifar10")
    assert "differ in data" in compare(chosen(tmp_path))["warnings"][0]


def test_running_run_can_be_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    unfinished(tmp_path / "b")
    assert {g["name"]: g["remark"] for g in compare(chosen(tmp_path))["groups"]} == {
        "dcpfl": "", "fedavg+dw": "interrupted",
    }  # fmt: skip


# -- who is served ----------------------------------------------------------------------------------------------------


class Client:
    """Requests to the application, without a server between."""

    def __init__(self, root: Path):
        self._app = make_app(RunIndex(root), 8642, TOKEN)
        self.cookies = {"atoll-8642": TOKEN}

    def request(self, verb: str, address: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://{HOST}", cookies=self.cookies
            ) as client:
                return await client.request(verb, address, headers=headers)

        return asyncio.run(ask())

    def get(self, address: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", address, headers)


@pytest.mark.parametrize("address", ["/", "/api/runs", "/page/app.js", "/?token=", "/?token=another", "/nowhere"])
@pytest.mark.parametrize("cookies", [{}, {"atoll-8642": "another"}, {"atoll-8643": TOKEN}, {"atoll-8642": ""}])
def test_requests_without_the_token_are_refused(address: str, cookies: dict[str, str], tmp_path: Path) -> None:
    make_run(tmp_path / "secret")
    client = Client(tmp_path)
    client.cookies = cookies

    answer = client.get(address)

    assert answer.status_code == 401
    assert "secret" not in answer.text
    assert "set-cookie" not in answer.headers


def test_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.cookies = {}

    answer = client.get(f"/?token={TOKEN}")

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("atoll-8642=")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_token_does_not_open_the_dashboard_to_other_pages(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.get(f"/?token={TOKEN}", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get(f"/?token={TOKEN}", headers={"host": "evil.example:8642"}).status_code == 421


def test_everything_that_the_page_refers_to_is_served_from_here(tmp_path: Path) -> None:
    client = Client(tmp_path)
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    folder = Path(server.__file__).parent / "page"
    for name in [*os.listdir(folder), "colours.css"]:
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200, name
        told = answer.text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert "http:" not in told, name
        assert "https:" not in told, name
    assert "#0072b2" in client.get("/page/colours.css").text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1:1", "127.0.0.1", "localhost.evil:8642", ""]
)
def test_other_names_for_this_machine_are_refused(host: str, tmp_path: Path) -> None:
    make_run(tmp_path / "secret")
    for address in ("/", "/api/runs"):
        answer = Client(tmp_path).get(address, headers={"host": host})
        assert answer.status_code == 421
        assert "secret" not in answer.text


def test_requests_of_other_pages_are_refused(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.get("/api/runs", headers={"host": "localhost:8642"}).status_code == 200
    for headers in (
        {"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):  # fmt: skip
        assert client.get("/api/runs", headers=headers).status_code == 403, headers
    for headers in ({"origin": f"http://{HOST}"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert client.get("/api/runs", headers=headers).status_code == 200, headers


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_requests_other_than_reads_are_refused(verb: str, tmp_path: Path) -> None:
    assert Client(tmp_path).request(verb, "/api/runs").status_code == 405


@pytest.mark.parametrize(
    "address",
    [
        "/page/../app.py",
        "/page/..%2Fapp.py",
        "/page/%2e%2e%2fapp.py",
        "/api/runs/..",
        "/api/runs/%2e%2e%2fa",
        "/config.yaml",
    ],
)
def test_files_outside_the_page_are_not_served(address: str, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    assert Client(tmp_path / "a").get(address).status_code == 404


def test_an_unknown_run_and_too_many_runs_are_refused_with_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    make_comparison(tmp_path, seeds=1)
    client = Client(tmp_path)
    assert "no longer exists" in client.get("/api/runs/123").json()["error"]
    monkeypatch.setattr("atoll.dashboard.comparison.MOST", 2)
    ids = ",".join(row["id"] for row in client.get("/api/runs").json()["runs"])
    answer = client.get(f"/api/compare?ids={ids}")
    assert (answer.status_code, "at most 2" in answer.json()["error"]) == (400, True)


def test_unchanged_answer_is_not_sent_again(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    client = Client(tmp_path)
    first = client.get("/api/runs")
    again = client.get("/api/runs", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_dashboard_changes_no_files(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", config={"method": "fedavg"})
    checkpoint(path, {"params/head.weight": np.eye(2, dtype=np.float32)})

    def state() -> dict[str, tuple[int, bytes]]:
        files = sorted(p for p in tmp_path.rglob("*"))
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in files}

    before, client = state(), Client(tmp_path)
    (row,) = client.get("/api/runs").json()["runs"]
    for address in (f"/api/runs/{row['id']}", f"/api/runs/{row['id']}/contents", f"/api/compare?ids={row['id']}"):
        assert client.get(address).status_code == 200
    assert state() == before


# -- the command ------------------------------------------------------------------------------------------------------


def test_command_refuses_missing_folder_busy_port_and_missing_package(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no folder 'nowhere'" in refused("ui", "nowhere")
    with server.listen(0) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in refused("ui", tmp_path, "--port", port)
    monkeypatch.setattr(server, "NEEDED", ("starlette", "no_such_package"))
    assert "needs the package no_such_package: pip install starlette uvicorn" in refused("ui", tmp_path)


def test_only_this_machine_can_connect() -> None:
    with server.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command in a process of its own: its address, and the process."""
    words = [sys.executable, "-m", "atoll", "ui", str(tmp_path), "--port", "0", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line.split()[1], process
    process.kill()
    process.communicate()


def test_the_command_serves_until_it_is_interrupted(
    dashboard: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    make_run(tmp_path / "a")
    whole, process = dashboard
    address, _, token = whole.partition("?token=")
    port = int(address.rstrip("/").rpartition(":")[2])
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(whole) as page:
        assert b"Atoll" in page.read()
    with browser.open(f"{address}api/runs") as answer:
        assert [row["name"] for row in json.load(answer)["runs"]] == ["a"]
    assert len(token) >= 32
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{address}api/runs")
    rebound = urllib.request.Request(f"{address}api/runs", headers={"Host": f"evil.example:{port}"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(rebound)
    with socket.create_connection(("127.0.0.1", port)):  # an open connection does not keep it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
