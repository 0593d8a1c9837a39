"""Commands check, explain and complete their options before anything heavy is imported."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from atoll import cli, models
from atoll.cli import signatures
from atoll.cli.data_names import check_data_name
from atoll.cli.deploy import load_run
from atoll.cli.signatures import RECIPES
from atoll.data.catalogue import KNOWN
from atoll.data.natural_sets import NATURAL
from atoll.experiments.papers import list_recipes
from atoll.methods import _registry
from atoll.methods._names import check_name, method_names
from atoll.utils.files import to_json

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "jinja2", "pandas", "pyarrow")
LATE = [name for name in cli.COMMANDS if name not in cli.IMPORTED_AT_ONCE]
RECORD = (
    "import sys\nfrom atoll.cli import main\n"
    "try: main(prog_name='atoll')\n"
    f"finally: print([m for m in {HEAVY} if m in sys.modules])"
)


def pairs(light: click.Command, real: click.Command) -> Iterator[tuple[click.Command, click.Command]]:
    yield light, real
    if isinstance(real, click.Group):
        assert isinstance(light, click.Group)
        assert list(light.commands) == list(real.commands)
        for name, command in real.commands.items():
            yield from pairs(light.commands[name], command)


@pytest.mark.parametrize("width", [60, 110])
@pytest.mark.parametrize("name", [*LATE, "deploy run"])
def test_help_without_imports_is_that_of_the_command(name: str, width: int) -> None:
    real = load_run() if name == "deploy run" else cli.load(name)
    for light, command in pairs(signatures.light_command(name, lambda: real), real):
        for c in (light, command):
            c._help_option = None  # click keeps the option of an earlier context, which may have had other names
        texts = [
            c.get_help(click.Context(c, info_name=name, terminal_width=width, help_option_names=cli.HELP))
            for c in (light, command)
        ]

        assert texts[0] == texts[1]


def test_signatures_are_those_of_the_commands() -> None:
    """If this fails, run `make pages`."""
    commands = {name: cli.load(name) for name in LATE} | {"deploy run": load_run()}

    names = {"data": sorted({*KNOWN, *NATURAL}), "models": models.names(), RECIPES: list_recipes()}

    assert signatures.FILE.read_text() == to_json(signatures.describe_all(commands, names), indent=1) + "\n"


def test_names_of_methods_are_known_without_importing_them() -> None:
    assert set(method_names()) == set(_registry.methods())


def started(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", RECORD, *words], capture_output=True, text=True, check=False, env=everything
    )


@pytest.mark.parametrize("name", [*cli.COMMANDS, "deploy run", "paper run"])
def test_help_imports_nothing_heavy(name: str) -> None:
    done = started(*name.split(), "--help")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run fedavgg", "Unknown method 'fedavgg'. Did you mean 'fedavg'?"),
        ("compare fedavg fedprx:no+dw", "Unknown method 'fedprx'. Did you mean 'fedprox'?"),
        ("methods fedavgg", "Unknown method 'fedavgg'. Did you mean 'fedavg'?"),
        ("run fedavg --data digitz", "Unknown data set 'digitz'. Did you mean 'digits'?"),
        ("run fedavg --rouns 3", "No such option '--rouns'"),
        ("run fedavg --rounds many", "Invalid value for '--rounds'"),
        ("sweep", "Missing argument 'METHOD'"),
    ],
)
def test_mistake_is_told_before_anything_heavy_is_imported(words: str, message: str) -> None:
    done = started(*words.split())

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("atoll ru", "plain,run"),
        ("atoll run --round", "plain,--rounds"),
        ("atoll run feda", "plain,fedavg"),
        ("atoll run --resume run", "dir,run"),
        ("atoll compare local --out run", "dir,run"),
        ("atoll paper run dcpfl/f", "plain,dcpfl/figure2"),
        ("atoll paper s", "plain,show"),
        ("atoll run fedavg --data cif", "plain,cifar10"),
        ("atoll run fedavg --models cnn1,cnn2", "plain,cnn1,cnn2"),
    ],
)
def test_completion_imports_nothing_heavy(typed: str, found: str) -> None:
    done = started(COMP_WORDS=typed, COMP_CWORD=str(len(typed.split()) - 1), _ATOLL_COMPLETE="bash_complete")

    assert found in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("text", ["all", "mine.py", "some/folder", "fedavg:no-such+dw", "."])
def test_files_variants_and_all_are_no_unknown_methods(text: str) -> None:
    check_name(text)


@pytest.mark.parametrize(
    "name", ["digits", "emnist", "emnist:letters", "mnist@0-4", "hf:some/set", "a.csv", "mine", "kept"]
)
def test_known_names_and_files_are_no_unknown_data_sets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept.npz").touch()

    check_data_name(name, str(tmp_path / "folder"), ["digits", "emnist:letters"])


def test_help_lists_common_options_and_help_all_the_others(atoll: Callable[..., Any]) -> None:
    short, whole = atoll("run", "--help").stdout, atoll("run", "--help-all").stdout

    assert "--partition" in short
    assert "--dp-clip" not in short
    assert "--help-all" in short
    assert "--dp-clip" in whole
    assert "Show 0 more" not in whole
    assert "atoll run --resume runs/dcpfl-digits" in short


@pytest.mark.parametrize("group", ["data", "deploy", "paper"])
def test_help_of_a_group_has_whole_sentences(group: str) -> None:
    shown = CliRunner().invoke(cli.main, [group, "--help"]).output

    assert "..." not in shown.partition("Commands:")[2]


def test_options_of_a_command_are_listed_without_its_arguments() -> None:
    options = CliRunner().invoke(cli.main, ["compare", "--help"]).output.partition("Options:")[2]

    assert "METHOD..." not in options
