"""Files reach the disk by one call for all of them, or by one for each where there is no such call."""

import os
from pathlib import Path

import pytest

from atoll.utils import files


@pytest.mark.parametrize("syncfs", [None, lambda handle: -1], ids=["without the call", "call fails"])
def test_each_file_is_flushed_where_one_call_does_not_do(
    syncfs: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        files.write(path, b"x", os.O_EXCL)
    flushed: list[int] = []
    monkeypatch.setattr(files, "_SYNCFS", syncfs)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))

    files.sync_files([*paths, tmp_path], tmp_path)

    assert flushed == [path.stat().st_ino for path in (*paths, tmp_path)]


def test_one_call_flushes_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles: list[int] = []
    monkeypatch.setattr(files, "_SYNCFS", lambda handle: handles.append(handle) or 0)
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("no file is flushed by itself"))

    files.sync_files([tmp_path / "a"], tmp_path)

    assert len(handles) == 1
