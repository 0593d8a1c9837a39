"""Notebooks run from top to bottom, and their pages follow from them."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.paths import ROOT

import atoll

FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, with few rounds and two seeds."""
    run, compare = atoll.run, atoll.run_compare

    def small_run(*args: Any, **options: Any) -> Any:
        return run(*args, **options | {"rounds": 1})

    def small_compare(methods: Any, seeds: Any = (0,), **options: Any) -> Any:
        return compare(methods, seeds=seeds[:2], **options | {"rounds": 1})

    monkeypatch.setattr(atoll, "run", small_run)
    monkeypatch.setattr(atoll, "run_compare", small_compare)
    monkeypatch.chdir(tmp_path)


def forms(outputs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [(output["output_type"], *sorted(output.get("data", ()))) for output in outputs]


@pytest.mark.promise("Documentation", "The notebooks run from top to bottom.")
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_and_has_the_outputs_of_its_cells(name: str, small: None) -> None:
    notebook = tool().read(name)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]

    made = list(tool().run(notebook))

    assert [forms(outputs) for outputs in made] == [forms(cell["outputs"]) for cell in cells]


@pytest.mark.parametrize("name", NAMES)
def test_page_and_figures_follow_from_the_notebook(name: str) -> None:
    notebook = tool().read(name)

    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == tool().page(name, notebook)
    for i, png in enumerate(tool().figures(notebook), start=1):
        assert (FOLDER / f"{name}-{i}.png").read_bytes() == png


def test_there_are_notebooks() -> None:
    assert len(NAMES) == 4
