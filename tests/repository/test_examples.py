"""Every example runs in a new interpreter and prints its result."""

import os
import re
import subprocess
import sys

import pytest
from support.paths import ROOT, TESTS

EXAMPLES = ROOT / "examples"
SAYS = {
    "quickstart.py": "client 3 predicts",
    "new_method.py": "sharedhead on digits",
    "own_model.py": "with Wide",
    "own_data.py": "north",
    "images.py": "client 4 with cnn5",
    "table.py": "cellar 1 says",
    "text.py": "shop 4",
    "standardise.py": "site minus all",
}


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w/]+(?:\.py)?)\)", page)) == set(SAYS)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output of every example, by name. All start from one new interpreter, because importing takes seconds."""
    folder = tmp_path_factory.mktemp("examples")
    environment = os.environ | {"ATOLL_DATA": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, TESTS / "support" / "fresh_examples.py", folder, *(EXAMPLES / name for name in SAYS)]
    subprocess.run(command, cwd=folder, env=environment, check=False)
    return {name: (folder / f"{name}.txt").read_text(encoding="utf-8") for name in SAYS}


@pytest.mark.parametrize("name", SAYS)
def test_example_runs_and_prints_its_result(name: str, printed: dict[str, str]) -> None:
    assert "Traceback" not in printed[name], printed[name]
    assert SAYS[name] in printed[name]
