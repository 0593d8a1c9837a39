"""``atoll data``: list data sets, and divide one among clients."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .data_table import print_columns, print_table
from .signatures import WholeSentences

if TYPE_CHECKING:
    from ..data.dataset import Array
    from ..data.federated_dataset import FederatedDataset

CLIENTS = 10  # If neither the user nor the data give a number.
MIN_WIDTH = 100  # Width of the output if it is not a terminal.

data_dir = click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder with data sets.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, with every client and class.")


@click.group(cls=WholeSentences, invoke_without_command=True)
@click.pass_context
@data_dir
@as_json
def data(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """List data sets, or divide one among clients and show the samples of each."""
    if context.invoked_subcommand is None:
        context.invoke(list_sets, data_dir=data_dir, as_json=as_json)


@data.command("list")
@data_dir
@as_json
def list_sets(data_dir: Path | None = None, as_json: bool = False) -> None:
    """List the data sets that can be loaded by name."""
    from ..data.loading import catalogue

    entries = catalogue(data_dir)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    table = Table(box=SIMPLE_HEAD)
    for head in ("name", "kind", "train", "test", "classes", "shape", "here", "licence"):
        table.add_column(head, justify="right" if head in ("train", "test", "classes") else "left")
    for entry in entries:
        train, test = (f"{rows:,}" for rows in entry.rows)
        shape, here = " x ".join(map(str, entry.shape)), "yes" if entry.found else ""
        table.add_row(entry.name, entry.kind, train, test, str(entry.classes), shape, here, entry.licence)
    console = _console()
    console.print(table)
    console.print(
        "Your own data: a .csv, .parquet or .npz file, or a folder of images. Next: atoll data show NAME",
        soft_wrap=True,
    )


def partition_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a partition."""
    options = (
        click.option("--task", help="What the labels are: classes, multilabel, regression or next-token."),
        click.option("--partition", default="auto", show_default=True, help="Partition of the samples among clients."),
        click.option(
            "--clients",
            type=click.IntRange(1),
            help=f"Number of clients. Default: all owners in the data (natural) or file (file), otherwise {CLIENTS}.",
        ),
        click.option(
            "--split",
            default="auto",
            show_default=True,
            help="client_811, client_82 or official. auto: official if a table says which rows are for testing.",
        ),
        click.option("--seed", type=int, default=0, show_default=True),
        data_dir,
        click.option(
            "--public",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="Number of samples to set aside as public data.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@data.command("show")
@click.argument("name")
@partition_options
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("holdings.png"),
    show_default=True,
    help="File of the chart, .png or .svg.",
)
@click.option(
    "--export",
    "export_to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the partition to a file, for file:PATH.",
)
@as_json
def show(
    name: str,
    task: str | None,
    partition: str,
    clients: int | None,
    split: str,
    seed: int,
    data_dir: Path | None,
    public: int,
    out: Path,
    export_to: Path | None,
    as_json: bool,
) -> None:
    """Divide data set NAME among clients, and print and draw the samples of each client.

    \b
    Partitions:
      iid                      equal random parts
      quantity:BETA            random parts of unequal sizes by a Dirichlet draw
      shards:K                 K shards of sorted labels for every client
      pathological:K           K classes for every client
      classes:K:BETA           K classes for every client, each class by a Dirichlet draw
      dirichlet:BETA           every class by a Dirichlet draw; the smaller BETA, the more uneven
      dirichlet:BETA:capped    also even sizes, at least 10 samples
      dirichlet:BETA:masked=P  a client takes part in a class with probability P
      dirichlet:BETA:client    every client draws its own mix
      natural                  the owners named in the data
      file:PATH                a partition written by --export
      auto                     natural if the data name owners, otherwise dirichlet:0.5
    """
    from ..data.partition_files import export
    from ..data.tables.description import describe_columns
    from ..report.plots import holdings, save

    federation = _divide(name, task, partition, clients, split, seed, data_dir, public)
    held = _count_rows(federation)
    save(
        holdings(held.tolist(), federation.clients, federation.dataset.groups, group=federation.dataset.problem.group),
        out,
    )
    if export_to is not None:
        export(federation, export_to)
    if as_json:
        click.echo(json.dumps(_facts(federation, held) | {"chart": str(out)}, indent=2))
        return
    console = _console()
    console.print(federation.recipe, soft_wrap=True)
    print_columns(console, describe_columns(federation.dataset))
    print_table(console, federation, held)
    for note in federation.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    console.print(f"Chart: {out}", soft_wrap=True)
    if export_to is not None:
        console.print(f"Exported: {export_to} (use it with --partition file:{export_to})", soft_wrap=True)


@data.command("cut")
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@partition_options
def cut(
    name: str,
    folder: Path,
    task: str | None,
    partition: str,
    clients: int | None,
    split: str,
    seed: int,
    data_dir: Path | None,
    public: int,
) -> None:
    """Divide data set NAME among clients and write a file for each into FOLDER, to try a deployment.

    A run between these sites has exactly the samples of a simulation with the same options.
    """
    from ..deploy.export_sites import export_sites as write

    for path in write(_divide(name, task, partition, clients, split, seed, data_dir, public), folder):
        click.echo(path)


@data.command("export")
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def export_files(name: str, folder: Path) -> None:
    """Copy the files of data set NAME, as its source has them, into FOLDER.

    For data sets with natural clients, such as hospitals: one file for each hospital, and the schema of their columns.
    """
    from ..data.natural_sets import NATURAL
    from ..errors import unknown

    if name not in NATURAL:
        raise unknown("data set with files to copy", name, NATURAL)
    for path in NATURAL[name].copy(folder):
        click.echo(path)


def _divide(
    name: str,
    task: str | None,
    partition: str,
    clients: int | None,
    split: str,
    seed: int,
    data_dir: Path | None,
    public: int,
) -> "FederatedDataset":
    from ..data.federate import federate
    from ..data.loading import load
    from ..data.partition.base import File
    from ..data.partition.natural import Natural
    from ..data.partition.specs import parse, resolve
    from ..data.split import resolve as resolve_split

    dataset = load(name, data_dir, task)
    partition = resolve(partition, dataset.owner_train is not None)
    if clients is None and not isinstance(parse(partition), File | Natural):
        clients = CLIENTS
    return federate(dataset, clients, partition, resolve_split(split, dataset), seed, public)


def _count_rows(federation: "FederatedDataset") -> "Array":
    """Count all rows of each client and class, training, validation and test: [clients, classes]."""
    return federation.counts("train") + federation.counts("val") + federation.counts("test")


def _facts(federation: "FederatedDataset", held: "Array") -> dict[str, object]:
    from ..data.tables.description import describe_columns

    clients = [
        {
            "id": client,
            "train": len(federation.train[i]),
            "val": len(federation.val[i]),
            "test": len(federation.test[i]),
            "classes": held[i].tolist(),
        }
        for i, client in enumerate(federation.clients)
    ]
    return {
        "name": federation.name,
        "recipe": federation.recipe,
        "dataset": federation.dataset.name,
        "classes": list(federation.dataset.groups),
        "clients": clients,
        "public": len(federation.public),
        "columns": [column._asdict() for column in describe_columns(federation.dataset)],
        "notes": list(federation.notes),
    }


def _console() -> Console:
    """Return a console without markup: names may contain brackets, and a pipe has no width."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    return console
