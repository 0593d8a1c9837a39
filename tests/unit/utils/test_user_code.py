"""Files that users write are imported as modules."""

import sys
from pathlib import Path

import pytest

from atoll.utils.user_code import imported


def test_file_may_import_another_file_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "first_part_of_two.py").write_text("STRENGTH = 3\n")
    (tmp_path / "second_part.py").write_text("from first_part_of_two import STRENGTH\n")

    module = imported(tmp_path / "second_part.py", "Method file")

    assert module.STRENGTH == 3


def test_file_of_a_folder_does_not_take_the_place_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text("raise RuntimeError\n")
    (tmp_path / "method.py").write_text("from colorsys import hsv_to_rgb\n")

    assert imported(tmp_path / "method.py", "Method file").hsv_to_rgb is not None
