"""``atoll report`` and ``atoll speedup``: compare finished runs."""

from pathlib import Path

import click
from rich.table import Table

from ..errors import AtollError
from ..report import figures, html, sheets, speedup, table, table_export
from ..report.checklist import reproducibility_checklist
from ..report.figures.base import by_case
from ..report.groups import split_by_problem
from ..report.ranks import Ranking, rank_runs
from ..report.replacing import check_report, check_table
from ..report.terminal_table import print_table
from ..storage import run_reader
from ..utils.files import to_json
from .console import console

TARGET = "Score to reach, such as an accuracy of 0.8."
MEASURE = "Average over all test samples, or over clients."


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="HTML file to write.  [default: report.html]"
)
@click.option(
    "--export",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the table as .md, .csv or .tex; may be repeated.",
)
@click.option(
    "--columns",
    metavar="NAME,NAME,...",
    help="Columns of exported tables, such as best_by_val,worst_decile,mb_up,p; default: all.",
)
@click.option("--checklist", is_flag=True, help="Print a reproducibility checklist, filled in from the runs.")
@click.option("--figures", "folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures.")
@click.option(
    "--figure",
    "kinds",
    multiple=True,
    metavar="KIND[:SETTING=VALUE&...]",
    help=f"Figure for the report and the folder, such as tsne:rows=50; may be repeated: {', '.join(figures.KINDS)}.",
)
@click.option("--ranks", is_flag=True, help="Rank methods over several data sets, by Friedman's test.")
@click.option("--force", is_flag=True, help="Replace other files of these names.")
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON and write nothing.")
def report(
    paths: tuple[Path, ...],
    out: Path | None,
    files: tuple[Path, ...],
    columns: str | None,
    checklist: bool,
    folder: Path | None,
    kinds: tuple[str, ...],
    ranks: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Compare runs: print the table and write one self-contained HTML report.

    RUN is a run directory, or a directory of runs. In the report and in exported tables, p is the p-value of the
    difference between a method and the best one: a paired t-test over the means of seeds, corrected by Holm. Figures
    are written as PNG and SVG: those of the report, and those of --figure, some of which load the models of the runs.
    With --ranks, the runs of several data sets are ranked together: mean ranks, Friedman's test, and Nemenyi's
    critical difference as a figure.

    A report is drawn again over the report of the same runs, and a table over the same table. Other files are only
    replaced with --force.
    """
    requests = [figures.parse_request(kind) for kind in (*kinds, *(["ranks"] if ranks else []))]
    for path in files:
        sheets.check_form(path)
    if columns and not files:
        raise AtollError("--columns chooses the columns of --export, which is not given. Add --export table.tex.")
    loaded = [run_reader.load(path) for path in run_reader.find(paths)]
    if as_json:
        click.echo(to_json([dict(run.summary) for run in loaded], indent=1))
        return
    if checklist:
        click.echo(reproducibility_checklist(loaded))
        return
    exported = {path: table_export.sheet(loaded, columns.split(",") if columns else ()) for path in files}
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    if not force:
        check_report(target, [run.path for run in loaded])
        for path, sheet in exported.items():
            check_table(path, sheet)
    for comparable in split_by_problem(loaded):
        print_table(console(), table.rows(comparable))
    for path, sheet in exported.items():
        sheets.export(sheet, path)
    shown = by_case(loaded)
    if ranks:
        print_ranks(rank_runs(shown))
    own = figures.make_figures(requests, shown)
    if folder:
        figures.write([*own, *figures.default_figures(shown)], folder)
        click.echo(f"Figures: {folder}")
    click.echo(f"Report: {html.write_runs(loaded, target, own)}")


def print_ranks(found: Ranking) -> None:
    """Print mean ranks, the ranks of each case, and what Friedman's test found."""
    shown = Table(title="Ranks, 1 is best")
    heads = found.sheet().columns
    for name in heads:
        shown.add_column(name, justify="left" if name == heads[0] else "right", overflow="fold")
    for row in found.sheet().rows:
        shown.add_row(*row)
    console().print(shown)
    click.echo(found.describe())
    if found.left_out:
        click.echo(f"Not in every case, and left out: {', '.join(found.left_out)}.")


@click.command("speedup")
@click.argument("waiting", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("wait_free", required=False, type=click.Path(path_type=Path), metavar="[WAIT_FREE_RUN]")
@click.option(
    "--target",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help=TARGET,
)
@click.option("--measure", type=click.Choice(speedup.MEASURES), default="weighted", show_default=True, help=MEASURE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def speed_up(waiting: Path, wait_free: Path | None, target: float, measure: str, as_json: bool) -> None:
    """Show how much sooner a wait-free run reaches a target, in simulated time.

    RUN is timed with clients that wait, WAIT_FREE_RUN (or RUN again) with clients that train their personal models
    during the upload. The speed-up is the product of the speed-up in rounds and the speed-up per round.
    """
    found = speedup.speedup(run_reader.load(waiting), run_reader.load(wait_free or waiting), target, measure)
    if as_json:
        click.echo(to_json(speedup.as_dict(found), indent=1))
    else:
        console().print(speedup.as_table(found))
