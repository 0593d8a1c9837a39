"""What users install: a wheel with the package and the recipes and nothing else, a source archive with all of it."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from support.paths import ROOT

import atoll
from atoll.experiments.papers import list_recipes

RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "papers").rglob("*.yaml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = str(tmp_path_factory.mktemp("wheel"))
    return Path(next(WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])))


def test_the_wheel_has_the_package_and_the_recipes_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"atoll/{path.relative_to(ROOT / 'src' / 'atoll').as_posix()}" for path in _sources()}
    assert {f"atoll/{recipe}" for recipe in RECIPES} | {"atoll/py.typed"} | sources <= names
    assert {name.split("/")[0] for name in names} == {"atoll", f"atoll-{atoll.__version__}.dist-info"}
    assert not [name for name in names if "test" in Path(name).name or name.endswith(".pyc")]


def _sources() -> list[Path]:
    return [path for path in (ROOT / "src" / "atoll").rglob("*.py") if "__pycache__" not in path.parts]


def test_wheel_has_name_version_licence_and_entry_point(wheel: Path) -> None:
    kept = zipfile.ZipFile(wheel)
    about = Parser().parsestr(kept.read(f"atoll-{atoll.__version__}.dist-info/METADATA").decode())
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("atoll", atoll.__version__, "Apache-2.0")
    assert f"version: {atoll.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    scripts = kept.read(f"atoll-{atoll.__version__}.dist-info/entry_points.txt").decode()
    assert "atoll = atoll.cli:main" in scripts


def test_wheel_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-m", "atoll", "paper", "--json"], capture_output=True, text=True, env=environment, check=True
    )
    assert [recipe["name"] for recipe in json.loads(done.stdout)] == list_recipes()


def test_the_source_archive_has_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    archive = next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with tarfile.open(archive) as kept:
        names = {name.partition("/")[2] for name in kept.getnames()}
    assert {
        *RECIPES,
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "src/atoll/py.typed",
        "tests/repository/test_package.py",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "runs/", "dist/"))]
