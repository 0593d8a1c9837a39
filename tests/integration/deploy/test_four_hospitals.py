"""Follow the tutorial of the four hospitals as a reader would: every command in order, with the real programs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployed_federation import free_port, wait_for
from support.paths import ROOT

pytestmark = pytest.mark.deploy
pytest.importorskip("flwr")

PAGE = ROOT / "docs" / "tutorial-four-hospitals.md"


class Reader:
    """A reader in a folder, with a terminal for each program that stays."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self._terminals: list[subprocess.Popen[bytes]] = []

    def types(self, block: str) -> str:
        """Run a block in a shell and return what it prints."""
        done = subprocess.run(
            ["bash", "-ec", block], cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def opens_terminals(self, block: str) -> None:
        """Start each line of a block in a terminal of its own."""
        for line in block.splitlines():
            command = ["bash", "-c", f"exec {line}"]
            self._terminals.append(subprocess.Popen(command, cwd=self.folder, env=self._environment))

    def leaves(self) -> None:
        for terminal in reversed(self._terminals):
            terminal.terminate()
        for terminal in self._terminals:
            terminal.wait(60)


@pytest.mark.promise("Documentation", "The tutorial of the four hospitals works from its first command to its last.")
def test_tutorial_of_four_hospitals_works_as_printed(tmp_path: Path) -> None:
    found = re.findall(
        r"(?:<!-- (.+?) -->\n)?^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    reader, said = Reader(tmp_path), ""
    try:
        for note, language, block in found:
            if language == "text":
                if not block.startswith("Error"):  # of a command that the page only describes
                    assert_same_words(block, said)
            elif "until Ctrl-C" in note:
                reader.opens_terminals(block)
            else:
                if "deploy status" in block:
                    wait_for(
                        "four sites online",
                        lambda: reader.types("atoll deploy status federation || true").count("online") == 4,
                    )
                said = reader.types(
                    block.replace("deploy init federation", f"deploy init federation --port {free_port()}")
                )
    finally:
        reader.leaves()
    assert (tmp_path / "hungary" / "state" / "sent.jsonl").exists()


def assert_same_words(shown: str, said: str) -> None:
    """Each printed line is among those that were said, but for numbers: another processor rounds differently."""
    lines = {_words(line) for line in said.splitlines()}
    for line in shown.splitlines():
        assert line.strip() == "..." or _words(line) in lines, f"the page has {line!r}, the command prints {said}"


def _words(line: str) -> str:
    return re.sub(r"─+", "─", " ".join(re.sub(r"\d[\d.,]*", "0", line).split()))
