"""The ``atoll`` command."""

import errno
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from .._version import __version__
from ..errors import AtollError

# Each command: where it is defined, and what it does. Modules are loaded when their command is called for, because they
# need torch, which takes seconds.
COMMANDS = {
    "run": ("run", "run", "Run one METHOD."),
    "compare": ("run", "compare", "Run several METHODs on the same clients and seeds, and rank them."),
    "sweep": ("sweep", "sweep", "Run one METHOD over settings, and choose by validation accuracy."),
    "paper": ("paper", "paper", "Tables and figures of the papers: list them, run one, and see paper and measured."),
    "methods": ("methods", "methods", "List the methods, or show one."),
    "audit": ("audit", "audit", "Show what leaves a client in one round of METHOD, or what the clients of a run sent."),
    "attack": ("attack", "attack", "Show what a curious server can read off one round of METHOD."),
    "models": ("methods", "models", "List the architectures."),
    "schema": ("schema", "schema", "Print the JSON Schema of configuration files, for editors."),
    "data": ("data", "data", "Data sets: list them, divide one among clients and see who holds what."),
    "report": ("report", "report", "Compare runs: print the table and write one self-contained HTML report."),
    "ui": ("ui", "ui", "Open a page that lists runs, follows them live and compares them."),
    "predict": ("predict", "predict", "Predict with a client's personalised model."),
    "export": ("export", "export", "Write personalised models for other programs: safetensors, torch.export, ONNX."),
    "adapt": ("adapt", "adapt", "Personal models for clients that were not in a run, with curves over few rows."),
    "deploy": ("deploy", "deploy", "Federations between real machines: make one, serve it, take part, run methods."),
    "speedup": ("report", "speed_up", "How much sooner a wait-free run reaches an accuracy."),
}
HELP = ["-h", "--help"]


class Commands(click.Group):
    """Loads commands late, suggests the nearest one, and shows a user's mistake without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(import_module(f".{module}", __name__), attribute)
        command.context_settings.setdefault("help_option_names", HELP)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AtollError as mistake:
            raise Mistake(str(mistake)) from mistake
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(130)
        except OSError as reason:
            if reason.errno == errno.EPIPE:  # the reader of our output has gone; click knows what to do
                raise
            full = reason.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            hint = " Make room, then continue with --resume." if full else ""
            raise Mistake(f"The operating system refused: {reason}.{hint}") from reason


class Mistake(click.ClickException):
    exit_code = 2


@click.group(cls=Commands, context_settings={"help_option_names": HELP, "max_content_width": 110})
@click.version_option(__version__, prog_name="atoll")
def main() -> None:
    """Personalised and model-heterogeneous federated learning.

    Start with:  atoll compare local fedavg dcpfl
    """
