"""What README and tutorials print is what the commands print.

Numbers may differ a little, because another processor rounds differently; seconds differ always.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

README = ROOT / "README.md"
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
MAKES_FILES = ("tutorial-own-data", "tutorial-three-hospitals")  # whose commands read what their code writes
BLOCK = r"^(<!-- (?:not run|part of).*? -->\n)?```(\w*)\n(.*?)^```"
COMMAND = r"(atoll|make|source) "
NUMBER = re.compile(r"[~±]?(\d[\d,.]*)(?:±([\d.]+))?")
POINTS, SHARE = 1.0, 0.02  # by which numbers may differ, as such or of their value


def printed(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield what a tutorial does, in order: code with no lines, and commands with the lines of their output.

    A command whose output the page does not show is left out; so is what the page marks as not run.
    """
    found = list(re.finditer(BLOCK, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    for at, block in enumerate(found):
        note, language, text = block.groups()
        if note:
            continue
        if language == "python":
            yield text, []
        shown = found[at + 1][3] if at + 1 < len(found) and found[at + 1][2] == "" else ""
        if text.startswith("atoll ") and text.count("\n") == 1 and shown and not re.match(COMMAND, shown):
            yield text.strip(), shown.splitlines()


def demo() -> tuple[str, list[str]]:
    """The table of the README and the command of ``make demo`` behind it."""
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0].partition("$(BIN)/")[2]
    (output,) = re.findall(r"^```\n(method .*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return " ".join(recipe.replace("\\\n", " ").split()), output.splitlines()


def is_same(shown: str, said: str) -> bool:
    """Return True if two lines have the same words, and numbers that are about the same, but for the seconds."""
    words, found = shown.split(), said.split()
    if len(words) > 9 and len(words) == len(found):  # the line of a method in a table
        words, found = words[:-1], found[:-1]
    return len(words) == len(found) and all(map(_is_close, words, found))


def _is_close(shown: str, said: str) -> bool:
    numbers = NUMBER.fullmatch(shown), NUMBER.fullmatch(said)
    if numbers[0] is None or numbers[1] is None:
        return shown == said or set(shown + said) == {"─"}
    pairs = zip(numbers[0].groups("0"), numbers[1].groups("0"), strict=True)
    values = [(float(a.replace(",", "").rstrip(".")), float(b.replace(",", "").rstrip("."))) for a, b in pairs]
    return all(abs(a - b) <= max(SHARE * abs(a), POINTS if a > 1.5 else 0) for a, b in values)


def assert_printed(shown: list[str], said: list[str]) -> None:
    """Compare line by line; ``...`` stands for any number of lines."""
    rest = iter([line for line in said if line.strip()])
    for line in (line for line in shown if line.strip()):
        if line.strip() == "...":
            continue
        skip = shown[max(0, shown.index(line) - 1)].strip() == "..."
        found = next((other for other in rest if not skip or is_same(line, other)), "")
        assert is_same(line, found), f"the page has {line!r}, the command prints {found!r}"


@pytest.mark.promise("Documentation", "Tutorials show what their commands print.")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_shows_what_its_commands_print(
    page: Path, atoll: Any, without_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {}
    for text, shown in printed(page):
        if shown:
            said = atoll(*shlex.split(text)[1:], *(["--workers", "2"] if "compare" in text else [])).stdout
            assert_printed(shown, said.splitlines())
        elif page.stem in MAKES_FILES:
            exec(compile(text, page.name, "exec"), names)


def test_every_tutorial_shows_some_output() -> None:
    assert len(TUTORIALS) == 5
    typed = [page for page in TUTORIALS if page.stem != "tutorial-four-hospitals"]  # its test starts servers and sites
    assert all(any(shown for _, shown in printed(page)) for page in typed)


@pytest.mark.chaos
@pytest.mark.promise("Documentation", "The README shows the table that `make demo` prints.")
def test_readme_shows_the_table_of_the_demo(atoll: Any) -> None:
    command, shown = demo()
    assert_printed(shown, atoll(*shlex.split(command)[1:]).stdout.splitlines())


def test_other_numbers_and_words_are_noticed() -> None:
    line = "fedavg_ft 1  95.56 95.66 96.02     81.25   94.47  0.0192  0.0192   8.63 17.0"
    assert is_same(line, line.replace("95.56", "95.91").replace("17.0", "3.2"))
    assert not is_same(line, line.replace("95.56", "97.56"))
    assert not is_same(line, line.replace("0.0192", "0.0292"))
    assert not is_same(line, line.replace("fedavg_ft", "fedavg"))
    with pytest.raises(AssertionError, match="the page has"):
        assert_printed(["a b"], ["a c"])
