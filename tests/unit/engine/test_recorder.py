"""What a run writes down: lines of metrics, uploads in the audit log, the files of its directory."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from atoll.clients.tasks import ClientUpload, RoundLog
from atoll.config import Config
from atoll.core.payloads import about, payload
from atoll.core.schema import UploadError
from atoll.core.task import Round
from atoll.engine.recorder import NullRecorder, RunRecorder, make_metrics_line
from atoll.engine.run_state import RunState
from atoll.simulation.clock import Stamp
from atoll.storage import audit_log
from atoll.storage.run_dir import RunDir


@payload
class Number:
    v: Tensor = about("a number")


UPLOAD = ClientUpload("a", Number(torch.ones(())))


def test_metrics_line_has_no_empty_optional_fields() -> None:
    run_state = RunState()
    run_state.totals.up = 5
    line = make_metrics_line(
        RoundLog(2, ["a", "b"]),
        run_state,
        personal={"post": {"accuracy": 0.5}},
        generic=None,
        stamps={"waiting": Stamp(1.0, 2.0)},
        optional={"privacy": {"epsilon": 1.0}},
    )

    assert list(line) == [
        "round", "personal", "generic", "bytes", "flops", "clock", "participants", "rejected", "privacy", "seconds",
    ]  # fmt: skip
    assert line["round"] == 3
    assert line["bytes"] == {"up": 5, "down": 0}
    assert line["clock"] == {"waiting": {"generic": 1.0, "personal": 2.0}}


def test_run_directory_has_all_files_at_the_end(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run_dir:
        recorder = RunRecorder(run_dir, Config(), {"name": "data"})
        recorder.open([], 0)
        recorder.record_upload(Round(0), UPLOAD, None)
        recorder.record_metrics({"round": 1})
        recorder.finish(pa.table({"round": [1]}), recorder.summary())

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["audit"]["records"] == 1
    assert json.loads((tmp_path / "holdings.json").read_text()) == {"name": "data"}
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"round": 1}
    assert audit_log.verify(tmp_path / audit_log.NAME, 1, summary["audit"]["head"]).records == 1
    assert (tmp_path / "clients.parquet").exists()


def test_rejected_upload_is_recorded_with_its_flaw(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run_dir:
        recorder = RunRecorder(run_dir, Config(), {})
        recorder.open([], 0)
        recorder.record_upload(Round(4), UPLOAD, UploadError("v", "is too large"))
        recorder.sync()
        (record,) = audit_log.read(tmp_path / audit_log.NAME)

    assert (record.round, record.client) == (5, "a")
    assert record.verdict != "accepted"


def test_audit_log_continues_where_a_checkpoint_says(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run_dir:
        first = RunRecorder(run_dir, Config(), {})
        first.open([], 0)
        first.record_upload(Round(0), UPLOAD, None)
        mark = first.to_json()
        first.record_upload(Round(1), UPLOAD, None)  # no checkpoint knows of this one
        first.sync()
        heir = RunRecorder(run_dir, Config(), {})
        heir.take_over(mark)
        heir.open([], 0)

        assert heir.to_json() == mark


def test_recorder_that_is_not_open_cannot_record(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run_dir, pytest.raises(AssertionError, match="not open"):
        RunRecorder(run_dir, Config(), {}).record_upload(Round(0), UPLOAD, None)


def test_run_without_a_directory_adds_nothing_to_its_summary() -> None:
    recorder = NullRecorder()
    recorder.open([], 0)
    recorder.record_upload(Round(0), UPLOAD, None)

    assert recorder.summary() == {}
