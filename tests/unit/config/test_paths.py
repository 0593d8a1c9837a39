"""Paths in stored configurations."""

from pathlib import Path

import pytest

from atoll.config.paths import with_absolute_paths


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("data", "rows.csv", "{here}/rows.csv"),
        ("data", "rows.csv?label=a&owner=b", "{here}/rows.csv?label=a&owner=b"),
        ("data", "images@0-3", "{here}/images@0-3"),
        ("data", "digits", "digits"),  # a data set of the catalogue, although there is a folder of that name
        ("data", "digits@0-3", "digits@0-3"),
        ("data", "hf:owner/name", "hf:owner/name"),
        ("data", "missing.csv", "missing.csv"),
        ("partition", "file:rows.csv", "file:{here}/rows.csv"),
        ("partition", "iid", "iid"),
        ("topology", "ring", "ring"),
        ("topology", "rows.csv", "{here}/rows.csv"),
        ("method", "fedavg", "fedavg"),
        ("method", "mine.py", "{here}/mine.py"),
        ("models", ["mlp", "mine.py:Net?width=3"], ["mlp", "{here}/mine.py:Net?width=3"]),
        ("metric", ["./mine.py:score"], ["{here}/mine.py:score"]),
        ("terms", ["dw:mu=0.1"], ["dw:mu=0.1"]),
        ("data_dir", "images", "{here}/images"),
        ("data_dir", None, None),
    ],
)
def test_relative_paths_that_exist_become_absolute(
    name: str, value: object, wanted: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("rows.csv", "mine.py"):
        (tmp_path / file).touch()
    for folder in ("images", "digits", "fedavg", "ring", "iid", "mlp"):
        (tmp_path / folder).mkdir()
    expected = [w.replace("{here}", str(tmp_path)) for w in ([wanted] if isinstance(wanted, str) else wanted or [])]
    found = with_absolute_paths({name: value})[name]
    assert (found if isinstance(found, list) else [found] if found else []) == expected
