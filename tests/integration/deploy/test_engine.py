"""Runs between sites, without a network: the same bits as a simulation, whatever happens on the way."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import small_runs
from support.disk_crashes import Crash, trouble_at
from support.local_sites import SMALL, Sites, Wire, babbling, book, personal

from atoll.config import Config
from atoll.core.scores import accuracy
from atoll.data.dataset import Dataset
from atoll.deploy.site.models import personal_model, predictor
from atoll.deploy.site.participation import Participation
from atoll.deploy.site.worker import RequestHandler, local
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.engine.build import run_experiment
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.privacy.policy import Privacy
from atoll.report import html
from atoll.storage.run_dir import RunDir


@cache
def simulated(name: str, **changes: Any) -> Any:
    return small_runs.run(name, **SMALL | changes)


def deployed(folder: Path, name: str, **changes: Any) -> Sites:
    return Sites(folder, small_runs.setup(name, **SMALL | changes))


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _registry.methods())
def test_every_method_gives_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    """With the rules that sites have by default."""
    sites = deployed(tmp_path, name, min_class_count=10)
    for site in sites.names:
        sites.write(site, privacy=None)
    result, expected = sites.run(), simulated(name, min_class_count=10)
    assert result.summary["digest"] == expected.summary["digest"]
    assert personal(result) == personal(expected)


@pytest.mark.parametrize(
    "name", [name for name, cls in _registry.methods().items() if cls.traits.wait_free is not None]
)
def test_wait_free_methods_give_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    sites = deployed(tmp_path, name, wait_free=True)
    line = sites.line()
    result, expected = sites.run(line), simulated(name, wait_free=True)
    assert result.summary["digest"] == expected.summary["digest"]
    assert personal(result) == personal(expected)
    assert any(frame.kind == "finish" for _, frame in line.asked)


@pytest.mark.parametrize("name", ["dcpfl", "fml", "fedproto"])
def test_three_sites_with_unlike_architectures(name: str, tmp_path: Path) -> None:
    unlike = {"models": ("mlp_a", "mlp_b", "mlp:hidden=20"), "width": 16}
    result, expected = deployed(tmp_path, name, **unlike).run(), simulated(name, **unlike)
    assert result.pool.architectures() == ["mlp_a", "mlp_b", "mlp:hidden=20"]
    assert result.summary["digest"] == expected.summary["digest"]


def test_rows_that_start_anywhere_in_memory_and_weights_of_their_own(tmp_path: Path) -> None:
    """In a simulation a site's rows are a slice of everybody's: with 13 columns, one that is not aligned."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 13)).astype(np.float32), rng.integers(0, 3, 90)
    data = Dataset("odd", "table", x, y, x[:0], y[:0], ("a", "b", "c"))
    config = Config(method="fedproto", data="odd", init="per_client", clients=3, rounds=2, epochs=1, backend="loop")
    setup = build_setup(config, data)
    assert Sites(tmp_path, setup).run().summary["digest"] == run_experiment(setup).summary["digest"]


def test_some_of_the_sites_in_each_round(tmp_path: Path) -> None:
    """With a rate below 1 some sites are assessed before they ever take part."""
    part = {"rate": 0.34, "rounds": 3}
    result, expected = deployed(tmp_path, "ditto", **part).run(), simulated("ditto", **part)
    assert result.summary["digest"] == expected.summary["digest"]
    assert personal(result) == personal(expected)


# -- what a run leaves ------------------------------------------------------------------------------------------------


def test_a_run_directory_is_that_of_a_simulation(tmp_path: Path) -> None:
    deployed(tmp_path, "fedavg").run(report=True)
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["backend"], summary["evaluated"], summary["generic"]) == ("sites", "at the sites", None)
    page = (run / "report.html").read_text()
    assert "Samples stay at the sites" in page
    assert html.write([run], tmp_path / "again.html").exists()


@pytest.mark.promise("Models", "A site of a deployed run has the two models whose scores the run reports for it.")
@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_a_site_has_the_models_that_were_measured(method: str, which: str, tmp_path: Path) -> None:
    """Their accuracy on the site's test rows is what the run reports for these rounds.

    With a learning rate this high, the last round is not the best one.
    """
    sites = deployed(tmp_path, method, rounds=3, lr=4.0)
    result = sites.run()
    best = result.summary["personal"]["best_by_val_round"]
    assert best < 3
    number = best if which == "best" else 3
    last = {row["client"]: row["accuracy"] for row in result.clients if row["round"] == number}
    for name in sites.names:
        model, params, metadata = personal_model(sites.folder / name, which=which)
        (document,) = (sites.folder / name / "state" / "runs").glob("*/begin.json")
        rows = Participation(sites.site(name), json.loads(document.read_text())).pool.test[0]
        assert accuracy(model(params, rows.x), rows.y) == last[name]
        assert torch.equal(predictor(sites.folder / name, which=which)(rows.x), model(params, rows.x))
        assert (metadata["site"], metadata["round"], metadata["scores"]["accuracy"]) == (name, number, last[name])


def test_a_site_without_a_run_has_no_model(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    with pytest.raises(AtollError, match="has not taken part in a run yet"):
        personal_model(sites.folder / sites.names[0])


def test_sites_keep_a_book_of_what_left_them(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedpd")
    line = sites.line()
    sites.run(line)
    sent = book(tmp_path / "0")
    assert [(entry["round"], entry["exchange"]) for entry in sent] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(entry["bytes"] > 0 and len(entry["sha256"]) == 64 and not entry["again"] for entry in sent)


def test_sites_keep_only_states_that_may_be_needed(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "ditto", rounds=4)
    best = sites.run(config={"rounds": 3}).summary["personal"]["best_by_val_round"] - 1
    kept = [path.name[:6] for path in sorted((tmp_path / "0" / "state" / "runs").glob("*/0*"))]
    assert kept == sorted({f"00000{best}", "000002"})  # the run has ended: the best round by validation, and the last
    line = sites.line()
    sites.run(line)
    keep = [frame.head["keep"] for site, frame in line.asked if frame.kind == "exchange" and site == "0"]
    # Those of the two checkpoints, and that of the best round by validation. The site asks for an announcement of the
    # longer run, so the request comes twice.
    assert [[tag[0] for tag in tags] for tags in keep] == [sorted({best, 1, 2})] * 2


# -- once and only once -----------------------------------------------------------------------------------------------


@pytest.mark.promise("Between machines", "A request that comes twice is carried out once.")
@pytest.mark.parametrize("wait_free", [False, True])
def test_a_request_that_comes_twice_is_carried_out_once(tmp_path: Path, wait_free: bool) -> None:
    sites = deployed(tmp_path, "ditto", wait_free=wait_free)
    times: dict[str, int] = {}

    def twice(site: str, frame: Frame) -> str:
        if frame.kind == "exchange":
            times[site] = times.get(site, 0) + 1
            if times[site] % 2:
                first[site](pack(frame))  # carried out, but the reply is lost
                return "offline"
        return ""

    line = sites.line(twice)
    first = dict(line.sites)
    result = sites.run(line)
    assert result.summary["digest"] == simulated("ditto", wait_free=wait_free).summary["digest"]
    sent = book(tmp_path / "0")
    assert [entry["again"] for entry in sent] == [False, True, False, True]
    assert sent[0]["sha256"] == sent[1]["sha256"]


def test_a_worker_that_forgets_everything_after_every_answer(tmp_path: Path) -> None:
    """What is on the disk is enough, also between an upload and the personal training that follows it."""
    sites = deployed(tmp_path, "scd", wait_free=True)

    def forgetful(name: str) -> Any:
        return lambda data: (
            RequestHandler(sites.site(name)).handle(data).reply
        )  # what should go on afterwards never does

    result = sites.run(Wire({name: forgetful(name) for name in sites.names}))
    expected = simulated("scd", wait_free=True)
    assert (result.summary["digest"], personal(result)) == (expected.summary["digest"], personal(expected))


@pytest.mark.parametrize("method", ["ditto", "fedpd"])
def test_a_crash_at_any_step_that_touches_a_disk_resumes_to_the_same_end(method: str, tmp_path: Path) -> None:
    """Server and sites go down together, in the middle of writing; then the same job again."""
    changes = SMALL | {"clients": 2, "wait_free": method == "ditto"}
    expected = small_runs.run(method, **changes).summary["digest"]
    whole = Sites(tmp_path / "whole", small_runs.setup(method, **changes))
    with trouble_at(10**6) as steps:
        whole.run()
    for at in range(len(steps) // 12, len(steps), len(steps) // 6):
        sites = Sites(tmp_path / str(at), small_runs.setup(method, **changes))
        with trouble_at(at), pytest.raises(Crash):
            sites.run()
        assert sites.run().summary["digest"] == expected, at


def test_a_run_can_go_back_to_the_checkpoint_before_the_last(tmp_path: Path) -> None:
    """Sites have gone on to round 4 by then; they still have what rounds 2 and 3 left."""
    sites, away = deployed(tmp_path, "ditto", rounds=4), {3}
    line = sites.line(
        lambda site, frame: (
            "offline" if site == "1" and frame.kind == "exchange" and frame.head["round"] in away else ""
        )
    )
    with pytest.raises(AtollError, match="Round 4"):
        sites.run(line)
    kept = [path.name[:6] for path in sorted((tmp_path / "0" / "state" / "runs").glob("*/0*"))]
    assert {"000001", "000002", "000003"} <= set(kept) <= {"000000", "000001", "000002", "000003"}
    (tmp_path / "run" / "checkpoints" / "round-000003" / "server.safetensors").write_bytes(b"damaged")
    assert sites.run().summary["digest"] == simulated("ditto", rounds=4).summary["digest"]


def test_a_run_directory_that_is_in_use_is_waited_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites, busy = deployed(tmp_path, "fedavg"), RunDir(tmp_path / "run").__enter__()
    monkeypatch.setattr("atoll.deploy.server.run.time.sleep", lambda seconds: busy.let_go())
    assert sites.run().summary["status"] == "finished"
    with RunDir(tmp_path / "run"):
        monkeypatch.setattr("atoll.deploy.server.run.LINGER", 0.0)
        with pytest.raises(AtollError, match="is in use by another run"):
            sites.run()


# -- what goes wrong at sites -----------------------------------------------------------------------------------------


def test_a_site_that_never_answers_is_absent_as_in_a_simulation(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    line = sites.line(lambda site, frame: "lost" if (site, frame.kind) == ("1", "exchange") else "")
    result = sites.run(line, min_clients=2)
    expected = small_runs.run("fedavg", **SMALL, drop="client:1")
    assert result.summary["digest"] == expected.summary["digest"]
    assert result.summary["dropped"] == {"silent": 2}
    assert result.history[0]["dropped"] == [{"client": "1", "round": 1, "why": "silent"}]


def test_what_comes_too_late_is_counted_and_dropped(tmp_path: Path) -> None:
    """The site has gone on, but the server never names the state that came of it."""
    sites = deployed(tmp_path, "ditto")
    line = sites.line(lambda site, frame: "late" if (site, frame.kind) == ("1", "exchange") else "")
    result = sites.run(line, min_clients=2)
    assert result.summary["digest"] == small_runs.run("ditto", **SMALL, drop="client:1").summary["digest"]
    assert result.summary["late"] == result.history[-1]["late"] == 1  # that of the last round comes after the end
    bases = [frame.head["base"] for site, frame in line.asked if (site, frame.kind) == ("1", "exchange")]
    assert bases == [None, None]


def test_a_site_that_comes_back_in_time_takes_part(tmp_path: Path) -> None:
    sites, down = deployed(tmp_path, "fedavg"), iter(["offline", "worker", "offline"])
    line = sites.line(lambda site, frame: next(down, "") if (site, frame.kind) == ("1", "exchange") else "")
    assert sites.run(line).summary["digest"] == simulated("fedavg").summary["digest"]


def test_too_few_sites_are_waited_for_visibly_and_not_for_ever(tmp_path: Path) -> None:
    sites, away = deployed(tmp_path, "fedavg"), {"exchange"}
    line = sites.line(
        lambda site, frame: "offline" if site == "1" and frame.kind in away and frame.head["round"] else ""
    )
    with pytest.raises(
        AtollError, match=r"Round 2: 2 of at least 3 sites .* Site '1': cannot be reached.* same command"
    ):
        sites.run(line)
    events = [json.loads(entry) for entry in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["note", "error"]
    assert events[0]["text"].startswith("Round 2 waits for 1.")
    away.clear()
    assert sites.run(line).summary["digest"] == simulated("fedavg").summary["digest"]


def test_a_site_that_fails_is_absent_and_says_nothing_but_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    sites = deployed(tmp_path, "fedavg")
    line = sites.line()
    answer, said = line.sites["1"], list[bytes]()

    def fail(*_: Any) -> None:
        raise ValueError("row 7 holds a secret")

    def failing(data: bytes) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(Participation, "exchange", fail)
            said.append(answer(data))
        return said[-1]

    line.sites["1"] = failing
    result = sites.run(line, min_clients=2)
    assert result.summary["dropped"] == {"failed": 2}
    assert Frame("error", {"code": "failed"}, b"") in map(unpack, said)
    assert not any(b"secret" in data for data in said)
    assert "row 7 holds a secret" in capfd.readouterr().err  # the site's own log has it


def test_uploads_that_the_server_rejects_leave_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = deployed(tmp_path, "ditto", strikes=0)
    line = sites.line()
    answer = line.sites["1"]

    def broken(data: bytes) -> bytes:
        reply = unpack(answer(data))
        return pack(
            reply._replace(body=reply.body[:-4] + b"\xff\xff\xff\x7f" if reply.kind == "upload" else reply.body)
        )

    line.sites["1"] = broken
    result = sites.run(line)
    assert [r["client"] for metrics in result.history for r in metrics["rejected"]] == ["1", "1"]
    assert result.summary["digest"] == small_runs.run("ditto", **SMALL, drop="client:1").summary["digest"]
    bases = [frame.head["base"] for site, frame in line.asked if (site, frame.kind) == ("1", "exchange")]
    assert bases == [None, None]


def test_bytes_that_are_no_payload_are_a_rejected_upload(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    line = sites.line()
    line.sites["1"] = babbling(line.sites["1"])
    result = sites.run(line)
    assert [r["field"] for metrics in result.history for r in metrics["rejected"]] == ["payload", "payload"]


STRAY: dict[str, Callable[[Frame, list[Frame]], Frame]] = {
    "of another round": lambda reply, before: told(reply, round=reply.head["round"] + 1),
    "of another exchange": lambda reply, before: told(reply, exchange=reply.head["exchange"] + 1),
    "of another run": lambda reply, before: told(reply, run="another"),
    "in another site's name": lambda reply, before: told(reply, site="0"),
    "in nobody's name": lambda reply, before: reply._replace(head={}),
    "said before": lambda reply, before: before[0] if before else told(reply, round=-1),
    "many times as long as it can be": lambda reply, before: reply._replace(body=reply.body + bytes(2**22)),
}


def told(reply: Frame, **values: object) -> Frame:
    return reply._replace(head=reply.head | values)


@pytest.mark.parametrize("kind", STRAY)
@pytest.mark.parametrize("name", ["dcpfl", "feddw", "fedpd", "pfedes", "scd"])
def test_answers_to_other_questions_leave_the_run_as_without_their_sender(name: str, kind: str, tmp_path: Path) -> None:
    sites = deployed(tmp_path, name, strikes=0, rows=160)
    line, said = sites.line(), list[Frame]()
    answer = line.sites["1"]

    def stray(data: bytes) -> bytes:
        reply = unpack(answer(data))
        if reply.kind != "upload":
            return pack(reply)
        said.append(reply)
        return pack(STRAY[kind](reply, said[:-1]))

    line.sites["1"] = stray
    result = sites.run(line)
    rejected = [(r["client"], r["field"]) for metrics in result.history for r in metrics["rejected"]]
    assert rejected == [("1", "payload")] * 2
    assert result.summary["digest"] == simulated(name, strikes=0, rows=160, drop="client:1").summary["digest"]


def test_a_state_that_was_changed_on_the_disk_is_noticed(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "ditto")
    sites.run(config={"rounds": 1})
    (state,) = (tmp_path / "1" / "state" / "runs").glob("*/0*/state.safetensors")
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(AtollError, match="Site '1': lacks the state that the run needs"):
        sites.run()
    result = sites.run(min_clients=2)
    assert result.history[-1]["dropped"] == [{"client": "1", "round": 2, "why": "state"}]


def test_nothing_leaves_that_the_method_does_not_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = deployed(tmp_path, "fedavg")
    monkeypatch.setattr(Privacy, "upload_filter", lambda self, job, client, upload: client)
    result = sites.run()
    assert [rejected["field"] for rejected in result.history[0]["rejected"]] == ["payload"] * 3
    assert book(tmp_path / "0") == []


def test_an_upload_with_nan_is_rejected_as_in_a_simulation(tmp_path: Path) -> None:
    """A learning rate at which training diverges: the sites notice by themselves, and nothing leaves them."""
    wild = {"lr": 1e30, "rounds": 3}
    result, expected = deployed(tmp_path, "fedavg", **wild).run(), simulated("fedavg", **wild)
    assert result.summary["status"] == expected.summary["status"] == "diverged"
    assert result.summary["digest"] == expected.summary["digest"]
    assert book(tmp_path / "0") == []


# -- who may take part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", "9.9", "Site '1' has atoll 9.9, the server"),
        ("kind", "table", "Sites '0' and '1' differ in kind: image and table"),
        ("shape", [1, 9, 9], "differ in shape"),
        ("dtype", "float32", "differ in dtype"),
        ("classes", 9, "differ in classes: 10 and 9"),
        ("labels", "abc", "Name the classes alike"),
        ("site", "2", "that should be '1' calls itself '2'"),
        ("rows", [0, 1, 1], "with impossible values"),
        ("rows", "many", "with impossible values"),
    ],
)
def test_sites_that_do_not_fit_are_refused(field: str, value: Any, message: str, tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    line = sites.line()
    answer = line.sites["1"]

    def other(data: bytes) -> bytes:
        reply = unpack(answer(data))
        return pack(reply._replace(head=reply.head | {field: value}) if reply.kind == "card" else reply)

    line.sites["1"] = other
    with pytest.raises(AtollError, match=message):
        sites.run(line)
    assert not any(frame.kind == "exchange" for _, frame in line.asked)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fd", {"sums": "fixed"}, "that of fd cannot: the server keeps the means of each client"),
        ("fedavg", {"sums": "fixed", "robust": "median"}, "exclude each other"),
    ],
)
def test_fixed_sums_are_refused_between_sites_as_in_a_simulation(
    name: str, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=message):
        deployed(tmp_path, name).run(config=options)


def test_another_version_is_refused_by_the_site_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = deployed(tmp_path, "fedavg")
    monkeypatch.setattr("atoll.deploy.server.handshake.__version__", "9.9")
    with pytest.raises(AtollError, match=r"Site '0' cannot take part: has another version of atoll"):
        sites.run()


def test_other_settings_or_code_of_the_method_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = deployed(tmp_path, "fedavg")
    monkeypatch.setattr("atoll.deploy.server.handshake.method_digest", lambda method: "other")
    with pytest.raises(AtollError, match="Site '0' cannot take part: has the method with other settings"):
        sites.run()


def test_public_rows_must_be_those_of_the_server(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedmd")
    with pytest.raises(AtollError, match="the server has none"):
        sites.run(public="")
    np.savez(tmp_path / "other.npz", x=np.zeros((3, 1, 8, 8), np.uint8))
    sites.write("2", public=str(tmp_path / "other.npz"))
    with pytest.raises(AtollError, match="Site '2' has other public samples"):
        sites.run()


def test_a_method_file_must_be_at_the_sites(tmp_path: Path) -> None:
    """Code never comes from the server: a site uses its own copy, and only if it is the same."""
    source = Path(_registry.__file__).parent / "local.py"
    mine = tmp_path / "mine.py"
    mine.write_text(source.read_text().replace("from ..", "from atoll."))
    sites = Sites(tmp_path / "sites", small_runs.setup(str(mine), **SMALL))
    with pytest.raises(AtollError, match="Site '0' cannot take part: does not have the method"):
        sites.run()
    for name in sites.names:
        (sites.folder / name / "mine.py").write_text(mine.read_text())
        sites.write(name, methods=["mine.py"])
    assert sites.run().summary["digest"] == small_runs.run(str(mine), **SMALL).summary["digest"]
    (sites.folder / "1" / "mine.py").write_text(mine.read_text() + "\n# changed\n")
    with pytest.raises(AtollError, match="Site '1' cannot take part: has the method with other settings"):
        sites.run(force=True)


def test_what_only_a_simulation_can_do_is_refused(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    for changes, message in (
        ({"global_test": True}, "--global-test needs"),
        ({"drop": "0.5"}, "--drop is for"),
        ({"schedule": "buffered:2"}, "--schedule buffered:2 is for simulations"),
        ({"topology": "ring"}, "a deployed federation is a star"),
        ({"until_download": True, "clock": "compute:10"}, "--until-download is for simulations"),
    ):
        with pytest.raises(AtollError, match=message):
            sites.run(config=changes)


def test_run_between_sites_ends_by_validation_scores(tmp_path: Path) -> None:
    changes = {"until": 0.3, "rounds": 20}
    result, expected = deployed(tmp_path, "fedavg").run(config=changes), simulated("fedavg", **changes)

    assert (result.summary["status"], result.summary["rounds"]) == ("stopped", expected.summary["rounds"])
    assert result.summary["digest"] == expected.summary["digest"]


def test_run_between_sites_without_validation_rows_cannot_end_by_their_scores(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    for path in (tmp_path / "data").glob("*.npz"):
        arrays = dict(np.load(path))
        np.savez(path, **arrays | {name: arrays[name][:0] for name in ("x_val", "y_val")})

    with pytest.raises(AtollError, match="no client has any"):
        sites.run(config={"until": 0.3})


def test_a_run_goes_on_only_with_the_sites_it_began_with(tmp_path: Path) -> None:
    sites = deployed(tmp_path, "fedavg")
    sites.run(config={"rounds": 1})
    fewer = dict.fromkeys(("0", "1"), "")
    with pytest.raises(AtollError, match="began with the sites 0, 1, 2, not 0, 1"):
        sites.run(sites=fewer)
    arrays = dict(np.load(tmp_path / "data" / "1.npz"))
    np.savez(
        tmp_path / "data" / "1.npz", **arrays | {"x_train": arrays["x_train"][1:], "y_train": arrays["y_train"][1:]}
    )
    with pytest.raises(AtollError, match="Site '1' is not what it was when the run began"):
        sites.run()


def test_a_site_that_lost_its_folder_is_told_of_the_run_again(tmp_path: Path) -> None:
    """It knows nothing of the run any more; a method without states goes on all the same."""
    sites = deployed(tmp_path, "local")
    lost = []

    def fate(site: str, frame: Frame) -> str:
        if (site, frame.kind, frame.head.get("round")) == ("1", "exchange", 0) and not lost:
            lost.append(site)
            shutil.rmtree(tmp_path / "1" / "state" / "runs")
            line.sites["1"] = local(sites.site("1"))
        return ""

    line = sites.line(fate)
    assert sites.run(line).summary["digest"] == simulated("local").summary["digest"]
    assert [frame.kind for site, frame in line.asked if site == "1"][:5] == [
        "hello", "begin", "exchange", "begin", "exchange",
    ]  # fmt: skip
