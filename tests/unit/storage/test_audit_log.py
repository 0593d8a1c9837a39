"""The audit log of a run: whatever is done to it afterwards shows."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.small_runs import setup

from atoll.clients.fingerprints import fingerprint_bytes, fingerprint_upload
from atoll.core.payloads import Nothing
from atoll.core.serialization import encode
from atoll.engine.build import run_experiment
from atoll.engine.recorder import RunRecorder
from atoll.engine.setup import Setup
from atoll.errors import AtollError
from atoll.storage.audit_log import NAME, START, AuditError, AuditLog, Mark, Record, hash_of, line_of, read, verify
from atoll.storage.run_dir import RunDir

DIGEST = sha256(b"upload").hexdigest()


def written(path: Path, records: int = 12) -> Mark:
    """A log of three rounds of four clients, one of whom is refused."""
    log = AuditLog(path)
    for at in range(records):
        flaw = ("mu", "holds NaN or infinity") if at % 4 == 1 else None
        log.add(at // 4 + 1, 0, f"client {at % 4}", 100 + at, DIGEST, flaw)
    return log.mark()


def test_audit_record_has_the_documented_form_and_hash(tmp_path: Path) -> None:
    """The hash of a line is that of its JSON without the hash; the next line holds it."""
    log = AuditLog(tmp_path / NAME)
    first = log.add(1, 0, "a", 6, DIGEST)
    second = log.add(1, 1, "b", 0, "", ("payload", "is None"))
    body = (
        f'{{"seq":1,"round":1,"exchange":0,"staleness":0,"client":"a","bytes":6,"sha256":"{DIGEST}","verdict":"accepted",'
        f'"field":null,"reason":null,"previous":"{START}"}}'
    )
    own = sha256(body.encode()).hexdigest()
    lines = (tmp_path / NAME).read_text().splitlines()
    assert lines[0] == f'{body[:-1]},"hash":"{own}"}}'
    assert (hash_of(first), second.previous) == (own, own)
    assert (second.verdict, second.field, second.reason) == ("rejected", "payload", "is None")
    assert list(read(tmp_path / NAME)) == [first, second]
    assert log.mark() == Mark(2, (tmp_path / NAME).stat().st_size, hash_of(second))


def edited(lines: list[bytes], dice: Random) -> bytes:
    """Another byte somewhere."""
    data = bytearray(b"".join(lines))
    at = dice.randrange(len(data))
    data[at] = dice.choice([value for value in range(256) if value != data[at]])
    return bytes(data)


def without_a_line(lines: list[bytes], dice: Random) -> bytes:
    at = dice.randrange(len(lines))
    return b"".join(lines[:at] + lines[at + 1 :])


def swapped(lines: list[bytes], dice: Random) -> bytes:
    a, b = dice.sample(range(len(lines)), 2)
    lines = list(lines)
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def with_a_line(lines: list[bytes], dice: Random) -> bytes:
    """One that is there already, or one that is new and fits what comes before it."""
    at = dice.randrange(len(lines) + 1)
    values = json.loads(lines[at - 1]) if at else None
    head = values.pop("hash") if values else START
    fresh = line_of(Record(at + 1, 1, 0, 0, "x", 1, DIGEST, "accepted", None, None, head))
    return b"".join([*lines[:at], dice.choice([fresh, dice.choice(lines)]), *lines[at:]])


def cut_short(lines: list[bytes], dice: Random) -> bytes:
    whole = b"".join(lines)
    return whole[: dice.randrange(len(whole))]


def rewritten(lines: list[bytes], dice: Random) -> bytes:
    """The last record with another verdict, and with the hash that belongs to it."""
    records = [json.loads(line) for line in lines]
    for values in records:
        values.pop("hash")
    last = Record(**records[-1])._replace(bytes=dice.randrange(10**6))
    return b"".join([*lines[:-1], line_of(last)])


@pytest.mark.promise("Uploads", "Any change of the audit log of a finished run is detected.")
@pytest.mark.parametrize("tamper", [edited, without_a_line, swapped, with_a_line, cut_short, rewritten])
def test_any_change_of_a_finished_log_is_detected(
    tmp_path: Path, tamper: Callable[[list[bytes], Random], bytes]
) -> None:
    """Six kinds of tampering, 1000 edits of one byte and 200 of each other kind: all are noticed."""
    path = tmp_path / NAME
    end = written(path)
    lines, dice = path.read_bytes().splitlines(keepends=True), Random(7)
    times = 1000 if tamper is edited else 200
    noticed = 0
    for _ in range(times):
        path.write_bytes(tamper(lines, dice))
        try:
            verify(path, end.records, end.head)
        except AuditError:
            noticed += 1
    assert noticed == times
    path.write_bytes(b"".join(lines))
    assert verify(path, end.records, end.head) == end


def test_change_of_any_byte_is_detected_without_the_recorded_end(tmp_path: Path) -> None:
    """Of a run that has not ended the head is unknown: edits of a byte show all the same."""
    path = tmp_path / NAME
    written(path, records=3)
    lines, dice = path.read_bytes().splitlines(keepends=True), Random(8)
    for _ in range(300):
        path.write_bytes(edited(lines, dice))
        with pytest.raises(AuditError):
            verify(path)


def test_log_continues_from_a_mark(tmp_path: Path) -> None:
    path, other = tmp_path / NAME, tmp_path / "whole.jsonl"
    written(other, records=12)
    mark = written(path, records=8)
    log = AuditLog(path, mark)
    log.add(9, 0, "of a round that no checkpoint knows of", 1, DIGEST)
    with path.open("ab") as file:
        file.write(b'{"seq":10,"rou')  # the power went
    log = AuditLog(path, mark)
    for at in range(8, 12):
        flaw = ("mu", "holds NaN or infinity") if at % 4 == 1 else None
        log.add(at // 4 + 1, 0, f"client {at % 4}", 100 + at, DIGEST, flaw)
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("data", [b"", b"x" * 5000, None])
def test_log_without_the_record_at_the_mark_is_refused(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / NAME
    mark = written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) if data is None else data)
    with pytest.raises(AuditError, match="does not hold the 12 records"):
        AuditLog(path, mark)


def test_long_reasons_are_truncated_in_the_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / NAME)
    log.add(1, 0, "a", 1, DIGEST, ("f" * 10**6, "r" * 10**6))
    assert log.mark().size < 2**12
    assert len(list(read(tmp_path / NAME))) == 1


@pytest.mark.promise("Uploads", "Digests in the audit log are those of the bytes that were sent.")
def test_recorded_digest_is_that_of_the_uploaded_bytes() -> None:
    data = encode(Nothing())
    assert fingerprint_upload(Nothing()) == fingerprint_bytes(data) == (len(data), sha256(data).hexdigest())
    assert (
        fingerprint_upload(None, ("n", "is a list")) == fingerprint_upload(Nothing(), ("payload", "is huge")) == (0, "")
    )
    with pytest.raises(AttributeError, match="NoneType"):
        fingerprint_upload(None)


# -- runs -------------------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"clients": 3, "rows": 240, "rounds": 3, "eval_every": 3, "checkpoint_every": 2}


def carried_out(made: Setup, path: Path, resume: bool = False) -> Any:
    with RunDir(path) as folder:
        folder.start(made.config, resume=resume, force=False)
        return run_experiment(made, folder)


@pytest.mark.promise("Uploads", "The audit log has a record of every upload.")
def test_run_records_every_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients, three rounds; what is written is what each of them sends."""
    made, sent = setup("fedavg", **SHORT), []

    record = RunRecorder.record_upload

    def watched(recorder: RunRecorder, r: Any, outcome: Any, flaw: Any) -> None:
        sent.append((r.t + 1, r.exchange, 0, outcome.sender, *fingerprint_upload(outcome.upload)))
        record(recorder, r, outcome, flaw)

    monkeypatch.setattr(RunRecorder, "record_upload", watched)
    result = carried_out(made, tmp_path)
    records = list(read(tmp_path / NAME))
    assert [record[1:7] for record in records] == sent
    assert [(r.round, r.client) for r in records] == [(t, i) for t in (1, 2, 3) for i in made.pool.ids]
    assert {r.verdict for r in records} == {"accepted"}
    end = result.summary["audit"]
    assert verify(tmp_path / NAME, end["records"], end["head"]).records == 9


@pytest.mark.parametrize("name", ["fedpd", "dcpfl"])
def test_every_backend_writes_the_same_log(name: str, tmp_path: Path) -> None:
    """Workers take imprints themselves: the digests are the same."""
    logs = set()
    for backend in ("loop", "processes"):
        carried_out(setup(name, **SHORT | {"backend": backend, "workers": 2}), tmp_path / backend)
        logs.add((tmp_path / backend / NAME).read_bytes())
    assert len(logs) == 1
    phases = {record.exchange for record in read(tmp_path / "loop" / NAME)}
    assert phases == ({0, 1} if name == "fedpd" else {0})


def test_log_records_the_colluded_uploads_of_byzantine_clients(tmp_path: Path) -> None:
    """Their uploads change after workers took the imprints."""
    logs, short = {}, SHORT | {"clients": 5, "workers": 2}
    for name, changes in {"loop": {"backend": "loop"}, "workers": {"backend": "processes"}}.items():
        carried_out(setup("fedavg", **short | changes | {"poison": "0.4:alie"}), tmp_path / name)
        logs[name] = (tmp_path / name / NAME).read_bytes()
    carried_out(setup("fedavg", **short | {"backend": "loop"}), tmp_path / "honest")
    assert logs["loop"] == logs["workers"] != (tmp_path / "honest" / NAME).read_bytes()


def test_hash_chain_continues_after_a_resume(tmp_path: Path) -> None:
    """Ended after round 3, of which the checkpoint of round 2 knows nothing, and lengthened to five."""
    made = setup("fedavg", **SHORT | {"rounds": 5})
    carried_out(made, tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(t: int, line: Any) -> None:
        if t == 3:
            raise Killed

    with RunDir(tmp_path / "cut") as folder:
        folder.start(made.config, resume=False, force=False)
        with pytest.raises(Killed):
            run_experiment(made, folder, kill)
    assert len(list(read(tmp_path / "cut" / NAME))) == 9
    resumed = carried_out(made, tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / NAME).read_bytes() == (tmp_path / "whole" / NAME).read_bytes()
    assert verify(tmp_path / "cut" / NAME).head == resumed.summary["audit"]["head"]


def test_resume_with_a_truncated_log_is_refused(tmp_path: Path) -> None:
    made = setup("fedavg", **SHORT)
    carried_out(made, tmp_path)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join(lines[:4]))
    longer = replace(made, config=replace(made.config, rounds=4))
    with pytest.raises(AuditError, match="start again with --force"):
        carried_out(longer, tmp_path, resume=True)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    carried_out(setup("fedavg", **SHORT | {"rounds": 1}), tmp_path / "run")
    return tmp_path / "run"


def test_audit_command_lists_and_verifies_records(atoll: Any, refused: Any, run: Path) -> None:
    listed = json.loads(atoll("audit", run, "--json").stdout)
    assert [record["client"] for record in listed] == list(setup("fedavg", **SHORT).pool.ids)
    shown = atoll("audit", run).stdout
    assert listed[0]["sha256"][:16] in shown
    assert "3 contributions of 3 clients" in shown
    found = json.loads(atoll("audit", run, "--verify", "--json").stdout)
    assert (found["records"], found["finished"]) == (3, True)
    assert found["head"] in atoll("audit", "--verify", run).stdout
    assert "Leave out all options but --verify" in refused("audit", run, "--epochs", 2)
    log = run / NAME
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ends after 2 records" in refused("audit", run, "--verify")
    (run / "summary.json").write_text("[]")
    assert "does not say where the audit log ends" in refused("audit", run, "--verify")
    (run / "summary.json").unlink()
    assert "has not ended" in atoll("audit", run, "--verify").stdout
    log.write_bytes(log.read_bytes().replace(b'"exchange":0', b'"exchange":1'))
    assert "line 1 was changed" in refused("audit", run, "--verify")


def test_audit_command_distinguishes_methods_from_run_directories(atoll: Any, refused: Any, run: Path) -> None:
    """A folder that is called like a method needs a path."""
    run.rename(run.with_name("local"))
    assert "Measured in the second round" in atoll("audit", "local", "--rows", 200).stdout
    assert "3 contributions" in atoll("audit", "./local").stdout
    assert "Unknown method 'fedagv'" in refused("audit", "fedagv")
    assert "There is no audit log" in refused("audit", "fedavg", "--verify")
    assert issubclass(AuditError, AtollError)
