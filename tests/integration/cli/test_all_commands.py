"""What holds for every command: listings have JSON, and a mistake gets one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from atoll.cli import COMMANDS, main

pytestmark = pytest.mark.usefixtures("module_without_report")


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and of every command of a group."""
    context = click.Context(main, info_name="atoll")
    for name in COMMANDS:
        command = main.get_command(context, name)
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, each) for each in command.list_commands(context))


def find(words: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


# Commands that print no listing: they write files, serve, draw, or print in a form of their own.
NO_LISTING = {
    ("schema",), ("ui",), ("data", "cut"), ("data", "export"), ("paper", "claim"), ("deploy",), ("deploy", "init"),
    ("deploy", "add"), ("deploy", "join"),
    ("deploy", "units"),
    ("deploy", "server"), ("deploy", "client"), ("deploy", "stop"), ("deploy", "reissue"), ("deploy", "revoke"),
}  # fmt: skip


@pytest.mark.promise("Command line", "Every listing takes `--json`.")
def test_every_command_that_lists_something_takes_json() -> None:
    without = {words for words in commands() if not any("--json" in p.opts for p in find(words).params)}
    assert without == NO_LISTING


@pytest.mark.parametrize("words", [("data",), ("paper",), ("paper", "show", "dcpfl/table1"), ("methods",), ("models",)])
def test_listings_print_readable_json(words: tuple[str, ...], atoll: Any) -> None:
    assert json.loads(atoll(*words, "--json").stdout)


@pytest.mark.promise("Command line", "A mistake gets one line that says what is wrong and what to do, and exit code 2.")
@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_unknown_option_of_every_command_gets_one_line(words: tuple[str, ...], refused: Any) -> None:
    said = refused(*words, "--no-such-option")
    assert said.startswith("Error: No such option '--no-such-option'") or "No such option: --no-such-option" in said
    assert "--help` lists what can be given." in said


def test_resume_without_a_folder_asks_for_the_folder(refused: Any) -> None:
    assert "--resume needs the folder of a run" in refused("run", "--resume")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--settings", "--set"), ("--terms", "--with"), ("--lerning-rate", "--lr"), ("--optimizer", "--optimiser")],
)
def test_names_of_python_and_other_spellings_lead_to_the_option(given: str, meant: str, refused: Any) -> None:
    said = refused("run", "fedavg", given, "x")

    assert f"No such option '{given}'. Did you mean '{meant}'?" in said


@pytest.mark.parametrize(
    "words",
    [
        ("--no-such-option",),
        ("runn",),
        ("run", "fedavg", "--rounds", "many"),
        ("run", "fedavg", "--rounds", 0),
        ("run", "fedavg", "--config", "broken.yaml"),
        ("run", "method.py"),
        ("run", "fedavg", "--set", "optim.lr"),
        ("methods", "--held", 99),
        ("run", "fedavg", "--set", "optim.momentum=5"),
        ("predict",),
    ],
    ids=str,
)
def test_mistake_gets_one_line_with_a_remedy(words: tuple[object, ...], refused: Any) -> None:
    Path("broken.yaml").write_text("method: [fedavg\nrounds: {\n")
    Path("method.py").write_text("raise ValueError('x')\n")
    said = refused(*words)
    assert said.endswith((".", "`"))
    assert len(said.split(". ")) >= 2 or "must be" in said  # What is wrong, and what to do.
