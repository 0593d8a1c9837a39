"""Print the table of runs in a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ..core.criterion import ACCURACY
from .table import AVERAGED, WITHOUT_MODEL, Column, Row, cell, columns, leaders

NAME = 14  # letters of a method's name before it folds


def print_table(console: Console, rows: Sequence[Row]) -> None:
    """Print the rows. If the terminal is too narrow, drop the least informative columns and name them."""
    shown, left_out = [c for c in columns(rows) if c.printed], list[Column]()
    while _width(console, rows, shown) > console.width and any(c.spare for c in shown):
        left_out.append(shown.pop(max(range(len(shown)), key=lambda i: shown[i].spare)))
    console.print(_rich_table(rows, shown))
    if rows and (score := rows[0].criterion) != ACCURACY:
        unit = " in %" if score.percent else ""
        console.print(f"Scores: {score.title}{unit}, {score.better} is better.", style="dim", highlight=False)
    splits = max((row.splits for row in rows), default=1)
    if splits > 1:
        console.print(f"Means over {splits} splits of the samples.", style="dim", highlight=False)
    for row in rows:
        if row.remark:
            console.print(f"[yellow]*[/] {escape(row.name)}: {escape(row.remark)}", highlight=False)
    if any(row.averaged for row in rows) and any(c.field == "generic" for c in shown):
        console.print(AVERAGED, style="dim", highlight=False)
    if any(not row.is_method for row in rows):
        console.print(WITHOUT_MODEL, style="dim", highlight=False)
    if left_out:
        console.print(f"Not shown at this width: {', '.join(c.short for c in left_out)}.", style="dim", highlight=False)


def _rich_table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("method", overflow="fold", max_width=NAME)
    table.add_column("n", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.short, justify="right", no_wrap=True)
    lead = {column: leaders(rows, column) for column in columns}
    for row in rows:
        cells = (_bold(cell(row, column, "±"), row.name in lead[column]) for column in columns)
        star = "[yellow]*[/]" if row.remark else ""
        table.add_row(escape(row.name) + star, str(len(row.seeds)), *cells)
    return table


def _bold(text: str, lead: bool) -> str:
    return f"[bold green]{text}[/]" if lead else text


def _width(console: Console, rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """Return the width of the table without a limit."""
    return Measurement.get(console, console.options.update(max_width=1000), _rich_table(rows, columns)).maximum
