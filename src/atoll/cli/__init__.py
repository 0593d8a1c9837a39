"""Define the ``atoll`` command and load its subcommands."""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

import click

from .._version import __version__
from ..errors import AtollError
from .signatures import light_command

# Each command: its module, its function and its help text. Modules are imported when their command is called and its
# options are right, because they need torch, whose import takes seconds.
COMMANDS = {
    "run": ("run", "run", "Run one METHOD."),
    "compare": ("run", "compare", "Run several METHODs on the same clients and seeds, and rank them."),
    "sweep": ("sweep", "sweep", "Run one METHOD over settings, and choose by validation."),
    "paper": (
        "paper",
        "paper",
        "List the tables and figures of papers, run one, and compare with the printed numbers.",
    ),
    "methods": ("methods", "methods", "List the methods, or show one."),
    "check": ("check", "check", "Check that METHOD, or the method in a file, obeys the laws of methods."),
    "audit": ("audit", "audit", "Show what leaves a client in one round of METHOD, or what the clients of a run sent."),
    "attack": ("attack", "attack", "Show what a curious server can infer from one round of METHOD."),
    "models": ("methods", "models", "List the architectures."),
    "schema": ("schema", "schema", "Print the JSON Schema of configuration files, for editors."),
    "data": ("data", "data", "List data sets, or divide one among clients and show the samples of each."),
    "report": ("report", "report", "Compare runs: print the table and write one self-contained HTML report."),
    "ui": ("ui", "ui", "Open a page that lists runs, follows them live and compares them."),
    "predict": ("predict", "predict", "Predict with a client's personalised model."),
    "scores": ("scores", "scores", "Score each client's personalised model on its test samples, with intervals."),
    "export": ("export", "export", "Write personalised models for other programs: safetensors, torch.export, ONNX."),
    "adapt": ("adapt", "adapt", "Train personal models for new clients that were not in a run."),
    "deploy": (
        "deploy",
        "deploy",
        "Run federations between real machines: create one, serve it, take part, run methods.",
    ),
    "speedup": ("report", "speed_up", "Show how much sooner a wait-free run reaches a target."),
}
HELP = ["-h", "--help"]
IMPORTED_AT_ONCE = ("data", "ui", "deploy")  # Their modules need little.


def load(name: str) -> click.Command:
    """Import a command."""
    module, attribute, _ = COMMANDS[name]
    with _loading_notice():
        command: click.Command = getattr(import_module(f".{module}", __name__), attribute)
    return command


# Words that Python or other frameworks have for an option.
OTHER_WORDS = {"--settings": "--set", "--terms": "--with", "--learning-rate": "--lr", "--dataset": "--data"}


class Commands(click.Group):
    """Group that imports commands when needed, suggests similar names, and shows errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = load(name) if name in IMPORTED_AT_ONCE else light_command(name, partial(load, name))
        command.context_settings.setdefault("help_option_names", HELP)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as mistake:
            raise in_one_line(mistake) from mistake

    def invoke(self, ctx: click.Context) -> object:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                return super().invoke(ctx)
        except AtollError as mistake:
            raise Mistake(str(mistake)) from mistake
        except click.UsageError as mistake:
            raise in_one_line(mistake) from mistake
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(130)
        except OSError as reason:
            if reason.errno == errno.EPIPE:  # The reader of the output has closed the pipe; click handles this.
                raise
            full = reason.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            hint = " Free some space, then continue with --resume." if full else ""
            raise Mistake(f"The operating system reports an error: {reason}.{hint}") from reason


@contextmanager
def _loading_notice() -> Iterator[None]:
    """Show a word on a terminal while modules are imported, which can take seconds, and remove it afterwards."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    sys.stderr.write("Loading ...")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class Mistake(click.ClickException):
    """An error that the user can correct; the command prints one line and ends with exit code 2."""

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def in_one_line(mistake: click.UsageError) -> click.ClickException:
    """Return an error of click without usage, with the command that explains the options."""
    if isinstance(mistake, click.exceptions.NoArgsIsHelpError):
        return mistake  # Its message is the help text.
    where = mistake.ctx.command_path if mistake.ctx else "atoll"
    said = _no_such_option(mistake) if isinstance(mistake, click.NoSuchOption) else mistake.format_message()
    end = "" if said.endswith("?") else "."
    return Mistake(f"{said.rstrip('.')}{end} `{where} --help` lists what can be given.")


def _no_such_option(mistake: click.NoSuchOption) -> str:
    """Return what is wrong with an option's name, with the option that was probably meant."""
    names = [name for param in mistake.ctx.command.params for name in param.opts] if mistake.ctx else []
    words = {**{name: name for name in names}, **{word: name for word, name in OTHER_WORDS.items() if name in names}}
    near = get_close_matches(mistake.option_name, words, n=1)
    hint = f" Did you mean {words[near[0]]!r}?" if near else ""
    return f"No such option {mistake.option_name!r}.{hint}"


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning of a library as one line, without its source."""
    click.echo(f"Warning: {' '.join(str(message).split())}", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": HELP, "max_content_width": 110})
@click.version_option(__version__, prog_name="atoll")
def main() -> None:
    """Personalised and model-heterogeneous federated learning.

    Start with:  atoll compare local fedavg dcpfl
    """
