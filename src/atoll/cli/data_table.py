"""Print the rows of each client and class as a table that fits the terminal."""

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..data.dataset import Array
    from ..data.federated_dataset import FederatedDataset
    from ..data.tables.description import ColumnFacts

MAX_CLIENTS = 20  # Lines of the printed table.
MAX_HEAD = 12  # Characters of a class name in the head of its column.


class _Column(NamedTuple):
    head: str
    cells: list[str]  # One for each client shown.
    total: str = ""

    @property
    def width(self) -> int:
        return 3 + max(len(text) for text in (self.head, *self.cells, self.total))


def print_table(console: Console, federation: "FederatedDataset", held: "Array") -> None:
    """Print clients as rows and classes as columns, as many as fit; totals are over all clients."""
    names = _Column("client", [_shorten(client) for client in federation.clients[:MAX_CLIENTS]], "all")
    classes = [_count_column(name, held[:, c].tolist()) for c, name in enumerate(federation.dataset.groups)]
    parts = {"train": federation.train, "val": federation.val, "test": federation.test}
    sums = [_count_column("all", held.sum(1).tolist())]
    sums += [_count_column(name, [len(rows) for rows in part]) for name, part in parts.items()]
    fit = _fitting(classes, console.width - sum(column.width for column in (names, *sums)))
    columns = [names, *classes[:fit], *sums]
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.head, justify="left" if column is names else "right", no_wrap=True)
    for line in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*line)
    table.add_section()
    table.add_row(*(column.total for column in columns))
    console.print(table)
    missing = {
        "clients": len(federation.clients) - len(names.cells),
        federation.dataset.problem.groups: len(classes) - fit,
    }
    hidden = [f"{number} {what}" for what, number in missing.items() if number]
    if hidden:
        console.print(f"Not shown: {' and '.join(hidden)}. --json lists everything.", soft_wrap=True)
    if len(federation.public):
        console.print(f"Public samples: {len(federation.public):,}", soft_wrap=True)


def print_columns(console: Console, columns: "Sequence[ColumnFacts]") -> None:
    """Print the columns of a raw table: kind, values and empty cells."""
    if not columns:
        return
    table = Table(box=SIMPLE_HEAD)
    for head in ("column", "kind", "values", "empty"):
        table.add_column(head, justify="right" if head == "empty" else "left")
    for column in columns:
        table.add_row(column.name, column.kind, column.values, f"{column.empty:,}" if column.empty else ".")
    console.print(table)


def _count_column(head: str, numbers: list[int]) -> _Column:
    cells = [f"{number:,}" if number else "." for number in numbers[:MAX_CLIENTS]]
    return _Column(_shorten(head), cells, f"{sum(numbers):,}")


def _fitting(columns: list[_Column], room: int) -> int:
    """Return how many columns fit, at least one."""
    ends = accumulate(column.width for column in columns)
    return max(1, sum(end <= room for end in ends))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_HEAD else text[: MAX_HEAD - 1] + "…"
