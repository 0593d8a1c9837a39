"""The ``atoll`` command."""

import errno
import sys
from difflib import get_close_matches
from typing import Any

import click

from .. import __version__
from ..errors import AtollError
from .data import data
from .methods import audit, methods, models
from .report import report, speed_up
from .run import compare, run


class Suggesting(click.Group):
    """A group that suggests the nearest command, and shows a user's mistake without a traceback."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
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
            hint = " Make room, then continue with --resume." if reason.errno == errno.ENOSPC else ""
            raise Mistake(f"The operating system refused: {reason}.{hint}") from reason


class Mistake(click.ClickException):
    exit_code = 2


@click.group(cls=Suggesting, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="atoll")
def main() -> None:
    """Personalised and model-heterogeneous federated learning.

    Start with:  atoll compare local fedavg dcpfl
    """


for command in (run, compare, methods, audit, models, data, report, speed_up):
    main.add_command(command)
