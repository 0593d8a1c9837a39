"""Every example runs as a user would run it, and says what it should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "quickstart.py": "client 3 predicts",
    "new_method.py": "sharedhead on digits",
    "own_model.py": "with Wide",
    "own_data.py": "north",
    "images.py": "client 4 with cnn5",
    "table.py": "cellar 1 says",
    "text.py": "shop 4",
}


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w/]+(?:\.py)?)\)", page)) == {*SAYS, "flower"}


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    environment = {"ATOLL_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
