"""``atoll report``: one HTML file from run directories."""

from pathlib import Path

import click

from ..report import html, runs, table
from .show import console


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The HTML file.  [default: report.html]")
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON and write nothing.")
def report(paths: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Compare runs: print the table and write one self-contained HTML report.

    RUN is a run directory, or a directory of runs.
    """
    found = runs.find(paths)
    loaded = [runs.load(path) for path in found]
    if as_json:
        from ..files import to_json

        click.echo(to_json([dict(run.summary) for run in loaded], indent=1))
        return
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    table.print_table(console(), table.rows(loaded))
    click.echo(f"Report: {html.write(found, target)}")
