"""``atoll adapt``: train personal models for clients that were not in a run."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ..errors import AtollError
from ..inference.adaptation import adapt as adapt_run
from ..inference.adaptation_files import to_document
from ..inference.adaptation_result import KINDS, Adaptation
from ..utils.files import to_json
from ..utils.parsing import parse_pair
from .console import console, counted, progress, quiet_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--data", help="Data of the new clients, as --data of a run. Owners in it are clients.")
@click.option(
    "--new-clients", is_flag=True, help="Adapt to the clients that stayed out of the run (its own --new-clients)."
)
@click.option("--shots", default="1,2,5,10,all", show_default=True, help="Training samples of each class.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Number of draws of samples and orders.")
@click.option("--epochs", type=float, help="Epochs of the new clients' training.  [default: as in the run]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a setting of the method.")
@click.option("--model", help="Architecture of the new clients, if the run has several.  [default: the first]")
@click.option("--partition", help="Divide the data among several new clients, as in a run.")
@click.option("--clients", type=click.IntRange(min=1), help="Number of new clients that the data are divided among.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of samples and orders.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: adapt in RUN]")
@click.option("--force", is_flag=True, help="Replace the new clients that are in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@quiet_option
def adapt(
    run: Path, data: str | None, new_clients: bool, settings: tuple[str, ...], out: Path | None, as_json: bool,
    quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Train personal models for clients that were not in RUN, from the state of its server.

    The server's state does not change. Each model is compared with one trained alone on the same samples by as many
    operations, and with the server's model if the method has one. `atoll predict` and `atoll export` accept the folder.
    """
    if new_clients == (data is not None):
        raise AtollError(
            "Give either --data with the samples of new clients, or --new-clients for the clients left out of the run."
        )
    with progress(quiet or as_json) as bars:
        watch = counted(bars, "new clients")
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
    table = Table(box=None, pad_edge=False, title=f"{made.label}: {count} new client{'s' * (count > 1)}")
    for title in (made.rows_title, "samples", *KINDS):
        table.add_column(title, justify="right")
    for row in made.cells():
        table.add_row(*row)
    return table
