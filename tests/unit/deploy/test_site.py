"""Sites by themselves: their frames, their files, their rows, and their worker as a process."""

import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support import small_runs
from support.local_sites import SMALL, Sites, Wire

from atoll.config import Config
from atoll.data.tables.preparation import Preparation
from atoll.deploy.export_sites import export_sites
from atoll.deploy.federation_dir import FederationDir
from atoll.deploy.server.job import DeploymentJob, read_job
from atoll.deploy.site import worker
from atoll.deploy.site.config import read_rows, read_site
from atoll.deploy.site.exchange_store import ExchangeStore, StateRef
from atoll.deploy.site.participation import Participation
from atoll.deploy.site.worker import local, serve
from atoll.deploy.site_folder import SiteFolder
from atoll.deploy.table_agreement import MOST_COLUMNS, columns_from_json, prepare_public
from atoll.deploy.transport import flower, protocol
from atoll.deploy.transport.protocol import Frame, ProtocolError, call, pack, unpack
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto

# -- frames -----------------------------------------------------------------------------------------------------------


def test_unpack_inverts_pack_of_a_frame() -> None:
    frame = Frame("upload", {"kind": 1, "score": {"accuracy": 0.1, "val": None}}, b"\0\xff" * 100)
    assert unpack(pack(frame)) == frame


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ATL1",
        pack(Frame("x", {}))[:-1],
        pack(Frame("x", {})) + b"!",
        b"ATL2" + pack(Frame("x", {}))[4:],
        struct.pack(">4sIQ", b"ATL1", 2**31, 0),
        struct.pack(">4sIQ", b"ATL1", 0, 2**63),
        struct.pack(">4sIQ", b"ATL1", 2, 0) + b"{}",
        struct.pack(">4sIQ", b"ATL1", 4, 0) + b"[1, ",
        struct.pack(">4sIQ", b"ATL1", 1000, 0) + b"[" * 1000,
        struct.pack(">4sIQ", b"ATL1", 8, 0) + b'["x", 1]',
    ],
)
def test_malformed_frames_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)
    answer = local(Sites(tmp_path, small_runs.setup("fedavg", **SMALL)).site("0"))
    assert unpack(answer(data)).code == "request"


@pytest.mark.parametrize(
    "head",
    [
        {"run": "../../etc"},
        {"run": "0" * 16},
        {},
        {"run": "0" * 16, "round": "x"},
    ],
)
@pytest.mark.parametrize("kind", ["exchange", "finish", "assess", "end", "begin", "hello", "statistics", "dance"])
def test_malformed_requests_get_an_error_code(kind: str, head: dict[str, Any], tmp_path: Path) -> None:
    answer = local(Sites(tmp_path, small_runs.setup("fedavg", **SMALL)).site("0"))
    assert unpack(answer(pack(Frame(kind, head)))).code in protocol.CODES
    assert not list((tmp_path / "0" / "state").glob("runs/*/0*"))


def test_unknown_error_code_becomes_failed() -> None:
    assert Frame("error", {"code": "rm -rf"}).code == "failed"
    assert Frame("error", {}).code == "failed"


def test_frame_beyond_the_limits_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_BODY", 10)

    assert unpack(pack(Frame("x", {}, bytes(10)))).body == bytes(10)
    for frame in (Frame("x", {}, bytes(11)), Frame("x", {"a": "b" * 2**20})):
        with pytest.raises(ProtocolError, match="too large to be sent"):
            pack(frame)


@pytest.mark.parametrize(
    "prefix", [struct.pack(">4sIQ", b"ATL1", 2**20 + 1, 0), struct.pack(">4sIQ", b"ATL1", 2, 2**33)]
)
def test_frame_that_claims_too_much_is_refused_before_the_rest_is_read(prefix: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(10)
        there.sendall(prefix)

        with pytest.raises(ProtocolError, match="too large"):
            protocol.receive(here)


def test_frame_that_breaks_off_is_refused() -> None:
    here, there = socket.socketpair()
    with here:
        there.sendall(pack(Frame("x", {}, b"body"))[:-1])
        there.close()

        with pytest.raises(ProtocolError, match="in the middle of a frame"):
            protocol.receive(here)


def test_text_that_is_no_public_key_is_an_error() -> None:
    with pytest.raises(AtollError, match="not a public key"):
        flower.normal_key("ssh-nonsense AAAA")


# -- files ------------------------------------------------------------------------------------------------------------


def test_exchange_store_keeps_needed_states_and_detects_changes(tmp_path: Path) -> None:
    exchanges = ExchangeStore(tmp_path, "ab" * 8)
    tags = []
    for t in range(3):
        entry = exchanges.entry(t, 0, "0" * 64)
        entry.begin(b"request", b"made")
        entry.answer(b"reply")
        assert entry.answered
        assert not entry.concluded
        entry.conclude(b"state %d" % t, {"after": None})
        tags.append(StateRef(t, 0, str(entry.digest())))
    exchanges.tidy({tags[0]}, round=2)
    assert [t for t, _, _ in exchanges.entries()] == [0, 2]
    assert exchanges.find(tags[2]).read("state.safetensors") == b"state 2"
    for tag, change in ((tags[1], ""), (tags[2], "x"), (StateRef(2, 0, "other"), "")):
        if change:
            (exchanges.find(tag).folder / "state.safetensors").write_text(change)
        with pytest.raises(protocol.Refusal) as refusal:
            exchanges.find(tag)
        assert refusal.value.code == "state"
    reply = exchanges.find(tags[0]).folder / "reply.frame"
    reply.write_text("other")
    assert not exchanges.find(tags[0]).answered


@pytest.mark.parametrize("content", ["{}", '{"after": 1}', "[]", "no JSON"])
def test_mark_without_checksums_is_not_taken_for_an_answer(content: str, tmp_path: Path) -> None:
    entry = ExchangeStore(tmp_path, "ab" * 8).entry(0, 0, "0" * 64)
    entry.folder.mkdir(parents=True)
    (entry.folder / "answered.json").write_text(content)

    assert entry.answered is False


# -- rows and settings ------------------------------------------------------------------------------------------------


def site_with(folder: Path, data: str, **values: Any) -> Any:
    entries = {"name": "north", "data": data} | values
    (folder / "site.yaml").write_text(json.dumps(entries))
    return read_site(folder)


def test_site_splits_its_rows_unless_the_file_is_split(tmp_path: Path) -> None:
    x, y = np.arange(200, dtype=np.float32).reshape(50, 4), np.arange(50) % 2
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    parts = {"x_train": x, "y_train": y, "x_val": x[:5], "y_val": y[:5], "x_test": x[:8], "y_test": y[:8]}
    np.savez(tmp_path / "three.npz", **parts)
    for file, sizes in (("plain.npz", [40, 5, 5]), ("two.npz", [50, 0, 10]), ("three.npz", [50, 5, 8])):
        assert site_with(tmp_path, file).card(Config())["rows"] == sizes
    federation = site_with(tmp_path, "plain.npz").federation(Config())
    held = np.concatenate([federation.train[0], federation.val[0], federation.test[0]])
    assert sorted(held) == list(range(50))


def test_a_site_reads_tables_with_the_classes_of_the_federation(tmp_path: Path) -> None:
    """A site that lacks a class has to list it, or its labels would be numbered otherwise."""
    (tmp_path / "rows.csv").write_text("age,bmi,label\n" + "\n".join(f"{i}.5,{i % 7}.0,ill" for i in range(20)))
    card = site_with(tmp_path, "rows.csv?classes=well,ill", model="mlp").card(Config())
    assert (card["kind"], card["shape"], card["classes"], card["model"]) == ("table", [2], 2, "mlp")
    assert site_with(tmp_path, "rows.csv").card(Config())["classes"] == 1


def test_exported_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    setup = small_runs.setup("fedmd", **SMALL)
    sites = Sites(tmp_path, setup)
    for at, name in enumerate(sites.names):
        own = sites.site(name).federation(setup.config)
        for part in ("train", "val", "test"):
            mine, theirs = own.part(part)[0], setup.federation.part(part)[at]  # type: ignore[arg-type]
            assert np.array_equal(own.rows(mine), setup.federation.rows(theirs))
            assert np.array_equal(own.labels(mine), setup.federation.labels(theirs))
    public = sites.site("0").public_rows
    assert public is not None
    assert np.array_equal(public.x, setup.federation.rows(setup.federation.public))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "../x", "data": "a"}, "letters, digits"),
        ({"name": "a"}, "needs an entry 'data'"),
        ({"name": "a", "data": "b", "modle": "c"}, "modle"),
        *(
            ({"name": "a", "data": "b", "methods": methods}, "list of Python files")
            for methods in ("mine.py", {"mine.py": 1}, ["mine.py", 3], ["mine"], 3)
        ),
        ({"name": "a", "data": 3}, "needs an entry 'data'"),
        ({"name": "a", "data": ""}, "needs an entry 'data'"),
    ],
)
def test_wrong_site_yaml_error_names_the_entry(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(json.dumps(values))
    with pytest.raises(AtollError, match=message):
        read_site(tmp_path)


def test_missing_data_of_a_site_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="no file or folder"):
        read_rows(str(tmp_path / "none.npz"))


# -- jobs and apps ----------------------------------------------------------------------------------------------------


def test_damaged_columns_of_exported_rows_are_an_error(tmp_path: Path) -> None:
    setup = small_runs.setup("fedavg", clients=2, rows=60)
    (path, _) = export_sites(setup.federation, tmp_path)
    np.savez(path, **dict(np.load(path)) | {"columns": np.array("no JSON")})

    with pytest.raises(AtollError, match="'columns' is damaged"):
        read_rows(str(path))


def test_split_that_the_rows_of_a_site_do_not_have_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((40, 3), "float32"), y=np.arange(40) % 2)
    rows = read_rows(str(tmp_path / "rows.npz"))

    with pytest.raises(AtollError, match="has no official test part"):
        rows.divided("north", Config(split="official"))
    with pytest.raises(AtollError, match="split"):
        rows.divided("north", Config(split="other"))


@pytest.mark.parametrize("client", ["../x", "a b"])
def test_clients_whose_names_are_no_names_of_sites_are_not_cut(client: str, tmp_path: Path) -> None:
    federation = replace(small_runs.setup("fedavg", clients=2, rows=60).federation, clients=("0", client))

    with pytest.raises(AtollError, match="cannot be a site"):
        export_sites(federation, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_rows_whose_labels_no_site_may_have_are_not_cut(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "rows.txt").write_text("abcabc" * 400)

    words = ("data", "cut", tmp_path / "rows.txt", tmp_path / "cut", "--clients", 2, "--partition", "iid")

    assert "Use a simulation" in refused(*words)


def test_wrong_job_file_error_names_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    for values, message in (
        ({"run_dir": "r", "config": {}, "sites": {}}, "needs sites"),
        ({"run_dir": "r", "config": {}, "sites": {"a": "key"}, "min_clients": 2}, "--min-clients must be from 1 to 1"),
        ({"run_dir": "r", "config": {}, "sites": {"a": "key"}, "min_clients": 0}, "--min-clients must be from 1 to 1"),
        ({"run_dir": "r", "config": {}, "sites": {"a": "key"}, "round_timeout": 0}, "--round-timeout"),
        ({"run_dir": "r", "sites": {"a": "key"}}, "is no job"),
        ({"run_dir": "r", "config": {}, "sites": {"a": "key"}, "rouns": 2}, "rouns"),
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(AtollError, match=message):
            read_job(path)


def test_deployed_run_writes_a_checkpoint_every_round() -> None:
    assert DeploymentJob("r", Config(rounds=9).to_dict(), {"a": "key"}).configured().checkpoint_every == 1


def test_flower_app_contains_no_code(tmp_path: Path) -> None:
    folder = flower.write_app(tmp_path / "app")
    assert [path.name for path in folder.rglob("*")] == ["pyproject.toml"]
    assert "atoll.deploy.site" not in (folder / "pyproject.toml").read_text()


# -- the worker as a process ------------------------------------------------------------------------------------------

Start = Callable[[str], BaseProcess]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with TemporaryDirectory(prefix="atoll") as folder:
        yield Path(folder)


@pytest.fixture
def workers(short: Path) -> Iterator[tuple[Sites, Start]]:
    """Sites, and how to start the worker of one."""
    sites, started = Sites(short, small_runs.setup("ditto", **SMALL, wait_free=True)), list[BaseProcess]()

    def start(name: str) -> BaseProcess:
        site = sites.site(name)
        site.socket.unlink(missing_ok=True)
        process = get_context("fork").Process(target=serve, args=(site,), daemon=True)
        process.start()
        started.append(process)
        while not site.socket.exists():
            time.sleep(0.01)
        return process

    yield sites, start
    for process in started:
        process.kill()
        process.join()


def caller(sites: Sites, name: str) -> Callable[[bytes], bytes]:
    return lambda data: call(sites.site(name).socket, data, timeouts=60)


def test_personal_training_runs_while_the_server_waits_for_other_sites(
    workers: tuple[Sites, Start], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Personal training waits for a file that is written when the last site of the round is asked for its upload."""
    sites, start = workers
    sign, train, others, last = sites.folder / "sign", Ditto.after_upload, list[str](), sites.names[-1]

    server = os.getpid()  # whose dry runs do not wait

    @wraps(train)
    def patient(*args: Any, **more: Any) -> Any:
        deadline = time.monotonic() + 30
        while os.getpid() != server and not sign.exists():
            assert time.monotonic() < deadline, "the server was kept waiting"
            time.sleep(0.01)
        return train(*args, **more)

    def noted(name: str, data: bytes) -> bytes:
        if unpack(data).kind == "exchange" and name == last:
            assert set(others) >= set(sites.names) - {last}  # all others have answered, and train
            sign.touch()
        reply = caller(sites, name)(data)
        if unpack(data).kind == "exchange":
            others.append(name)
        return reply

    monkeypatch.setattr(Ditto, "after_upload", patient)
    for name in sites.names:
        start(name)
    sites.run(Wire({name: partial(noted, name) for name in sites.names}))


def test_workers_behind_sockets_give_the_bits_of_the_simulation(workers: tuple[Sites, Start]) -> None:
    """One of them is killed while its personal training goes on, and started again when it is missed."""
    sites, start = workers
    processes = {name: start(name) for name in sites.names}
    kills = iter([True])

    def mortal(data: bytes) -> bytes:
        kind, socket = unpack(data).kind, sites.site("1").socket
        if kind == "finish" and next(kills, False):
            os.kill(int(processes["1"].pid or 0), signal.SIGKILL)
            processes["1"].join()
            reply = call(socket, data)
            assert unpack(reply).code == "worker"
            processes["1"] = start("1")
            return reply
        return call(socket, data)

    line = Wire({name: caller(sites, name) for name in sites.names} | {"1": mortal})
    digest = sites.run(line).summary["digest"]
    assert digest == small_runs.run("ditto", **SMALL, wait_free=True).summary["digest"]


def test_worker_logs_what_was_inferred_from_its_table_and_left_out(
    short: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (short / "state").mkdir()
    (short / "t.csv").write_text("age,ill\n30,yes\n,no\n50,\n60,no\n")
    (short / "site.yaml").write_text("{name: north, data: 't.csv?label=ill'}")
    site = read_site(short)
    process = get_context("fork").Process(target=serve, args=(site,), daemon=True)
    process.start()
    while process.is_alive() and not site.socket.exists():
        time.sleep(0.01)
    process.kill()
    process.join()

    said = capfd.readouterr().err
    assert "data: 1 rows without a label were dropped" in said
    assert "t.csv line 4" in said
    assert "data: Inferred as number: age." in said
    assert "data: Empty cells, which are filled (--missing): age 1." in said


def test_worker_socket_is_private_and_survives_malformed_input(workers: tuple[Sites, Start]) -> None:
    sites, start = workers
    process, place = start("0"), sites.site("0").socket
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">4sIQ", b"ATL1", 2**32 - 1, 2**62), b"ATL1"):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(place))
            line.sendall(words)
    assert unpack(call(place, pack(Frame("name", {})))).head == {"site": "0"}
    assert process.is_alive()


def test_upload_is_sent_before_personal_training(workers: tuple[Sites, Start], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never comes to the end of its personal training has sent its upload all the same."""
    sites, start = workers
    line, site = sites.line(), sites.site("0")
    sites.run(line)
    begin, exchange = (
        next(f for name, f in line.asked if (name, f.kind) == ("0", kind)) for kind in ("begin", "exchange")
    )
    shutil.rmtree(site.state / "runs")
    monkeypatch.setattr(Participation, "_conclude", lambda *_: time.sleep(60))
    start("0")
    assert unpack(call(site.socket, pack(begin))).kind == "ready"
    reply = unpack(call(site.socket, pack(exchange)))
    assert (reply.kind, len(reply.body) > 0, "state" in reply.head) == ("upload", True, False)
    assert unpack(call(site.socket, pack(Frame("name", {})), timeouts=0.2)).code == "worker"  # it is busy


def test_worker_cannot_listen_at_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="shorter path"):
        worker._listener(tmp_path / ("x" * 120), 0o600)


def test_second_worker_of_a_site_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path, small_runs.setup("fedavg", **SMALL))
    folder = tmp_path / "0"
    (folder / "state").mkdir(exist_ok=True)
    assert sites.site("0").name == "0"
    with (folder / "state" / "worker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "atoll.deploy.site.worker", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stderr.count("is running already")) == (1, 1)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("site.yaml", "name: [", "not readable YAML"),
        ("site.yaml", "[]", "must have an entry 'name'"),
        ("site.yaml", "name: 3", "must have an entry 'name'"),
        ("gate.yaml", "name: north", "must have an entry 'server'"),
    ],
)
def test_damaged_file_of_a_site_is_named(file: str, content: str, message: str, tmp_path: Path) -> None:
    site = SiteFolder(tmp_path)
    (tmp_path / file).write_text(content)

    with pytest.raises(AtollError, match=message):
        site.name() if file == "site.yaml" else site.server()


@pytest.mark.parametrize("missing", ["site.key", "gate.yaml", "ca.crt"])
def test_folder_without_a_file_of_the_connection_is_refused(missing: str, tmp_path: Path) -> None:
    home = FederationDir(tmp_path / "federation")
    home.create(["north"], ["localhost"], 8443, 30)
    (home.site("north") / missing).unlink()
    site = SiteFolder(home.site("north"))

    for check in (site.check, lambda: site.check_connection(insecure=False)):
        with pytest.raises(AtollError, match=rf"folder lacks {missing}"):
            check()


@pytest.mark.parametrize(
    "columns",
    [
        3,
        [["age", "number", None, None]] * (MOST_COLUMNS + 1),
        [[3, "number", None, None]],
        [["age", "nonsense", None, None]],
        [["age", "number", ["a"], None]],
        [["age", "category", [3], None]],
        [["age", "number", None, [2, 1]]],
        [["age"]],
    ],
)
def test_columns_that_cannot_be_are_refused(columns: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        columns_from_json(columns)


def test_public_rows_without_columns_cannot_be_prepared_like_a_table() -> None:
    rows = np.zeros((3, 2), "float32")

    assert prepare_public(rows, (), None) is rows
    with pytest.raises(AtollError, match="no named columns"):
        prepare_public(rows, (), Preparation(()))


def test_data_cut_writes_a_file_for_each_client(atoll: Any, tmp_path: Path) -> None:
    result = atoll("data", "cut", "digits", tmp_path / "cut", "--clients", 3, "--public", 20)
    assert [Path(line).name for line in result.stdout.splitlines()] == ["0.npz", "1.npz", "2.npz", "public.npz"]
    setup = small_runs.setup("fedmd", rows=None, clients=3, public=20)
    assert read_rows(str(tmp_path / "cut" / "1.npz")).given == tuple(
        len(setup.federation.part(part)[1]) for part in ("train", "val", "test")
    )


def test_site_refuses_labels_that_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("abcabc" * 40)

    with pytest.raises(
        AtollError, match=r"are tokens, and runs between sites have classes, several labels or numbers\. Use"
    ):
        read_rows(str(tmp_path / "rows.txt"))
