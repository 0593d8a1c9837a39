"""``atoll adapt``."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ..errors import AtollError
from ..inference.adaptation import KINDS, Adaptation, to_document
from ..inference.adaptation import adapt as adapt_run
from ..utils.files import to_json
from ..utils.parsing import parse_pair
from .console import console, counted, progress, quiet_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--data", help="Data of the newcomers: all that --data of a run takes. Owners in it are newcomers.")
@click.option("--newcomers", is_flag=True, help="The clients that stayed out of the run (its own --newcomers).")
@click.option("--shots", default="1,2,5,10,all", show_default=True, help="Training rows of each class.")
@click.option("--repeats", type=int, default=1, show_default=True, help="How often rows and orders are drawn.")
@click.option("--epochs", type=int, help="Passes of the newcomers' training.  [default: as in the run]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a field of the method.")
@click.option("--model", help="Architecture of the newcomers, if the run has several.  [default: the first]")
@click.option("--partition", help="Divide the data among several newcomers, as in a run.")
@click.option("--clients", type=click.IntRange(min=1), help="How many newcomers the data are divided among.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides rows and orders.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: adapt in RUN]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@quiet_option
def adapt(
    run: Path, data: str | None, newcomers: bool, settings: tuple[str, ...], out: Path | None, as_json: bool,
    quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Give clients that were not in RUN personal models, from what its server knows.

    The server stays as it is. Each model is compared with one trained alone on the same rows, by as many operations,
    and with the server's model if the method has one. `atoll predict` and `atoll export` take the folder written.
    """
    if newcomers == (data is not None):
        raise AtollError("Whose models? Give --data with the rows of newcomers, or --newcomers for those of the run.")
    with progress(quiet or as_json) as bars:
        watch = counted(bars, "newcomers")
        changes = dict(parse_pair("--set", text) for text in settings)
        made = adapt_run(run, data, settings=changes, out=out or run / "adapt", watch=watch, **options)
    for note in made.notes:
        click.echo(f"Note: {note}", err=True)
    if as_json:
        click.echo(to_json(to_document(made), indent=1))
    elif not quiet:
        console().print(_table(made))
        click.echo(f"Written: {out or run / 'adapt'}")


def _table(made: Adaptation) -> Table:
    count = len(made.models.clients)
    table = Table(box=None, pad_edge=False, title=f"{made.label}: {count} newcomer{'s' * (count > 1)}")
    for title in ("rows of each class", "rows", *KINDS):
        table.add_column(title, justify="right")
    for row in made.cells():
        table.add_row(*row)
    return table
