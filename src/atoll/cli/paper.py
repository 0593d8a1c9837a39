"""``atoll paper``: the tables of the papers, printed and measured."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from .. import __version__, papers
from ..compare import run_all
from ..errors import AtollError
from ..experiment import Watch
from ..files import to_json, write_whole
from ..ledger import Line
from ..papers import SCALES, Planned, Recipe, Scale
from ..report import html, runs
from ..report.export import Sheet, as_csv, latex, markdown
from .show import console, progress, quiet_option

WHERE = Path("runs") / "papers"


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def paper(ctx: click.Context, as_json: bool) -> None:
    """Tables of the papers: list them, run one, and see paper and measured side by side."""
    if ctx.invoked_subcommand is None:
        recipes = [papers.read(name) for name in papers.names()]
        if as_json:
            listed = [{"name": r.name, "title": r.title, "scales": list(r.scales)} for r in recipes]
            click.echo(to_json(listed, indent=1))
        else:
            console().print(_listing(recipes))


def _listing(recipes: Sequence[Recipe]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("recipe", "what it shows", "scales", "printed numbers"):
        table.add_column(title, justify="right" if title == "printed numbers" else "left")
    for r in recipes:
        table.add_row(r.name, r.title, " ".join(r.scales), str(len(r.printed) or "–"))
    return table


@paper.command()
@click.argument("name", metavar="PAPER/ITEM")
def show(name: str) -> None:
    """What a recipe runs, at each scale, and what to know about the printed numbers."""
    recipe, out = papers.read(name), console()
    out.print(f"[bold]{recipe.name}[/]  {recipe.title}")
    for note in recipe.notes:
        out.print(f"- {note}")
    for scale in recipe.scales.values():
        planned = papers.plan(recipe, scale, WHERE)
        cases = list(dict.fromkeys(p.case for p in planned))
        out.print(
            f"[bold]{scale.name}[/]: {len(planned)} runs; {len(cases)} cases; seeds {list(scale.seeds)}. {scale.note}"
        )
    ran = (f"{shown} ({said['run']})" for shown, said in recipe.methods.items())
    out.print(f"methods: {', '.join(ran)}")


@paper.command()
@click.argument("name", metavar="PAPER/ITEM")
@click.option("--scale", type=click.Choice(SCALES), default="cpu", show_default=True, help="How much of it.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at the same time.")
@click.option("--data-dir", help="Folder with data sets; default: ATOLL_DATA or a cache folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Where results go; default: below runs/papers.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def run(
    name: str, scale: str, workers: int, data_dir: str | None, out: Path | None, quiet: bool, as_json: bool
) -> None:
    """Run a recipe, and print paper | measured side by side.

    What was interrupted continues, what is finished is not run again.
    """
    recipe = papers.read(name)
    chosen, root = recipe.scale(scale), out or WHERE / recipe.name / scale
    planned = papers.plan(recipe, chosen, root, data_dir=data_dir)
    started = time.monotonic()
    with progress(quiet or as_json) as bars:
        _carry_out(planned, bars, workers)
    document = conclude(recipe, chosen, planned, root, time.monotonic() - started)
    if as_json:
        click.echo(to_json(document, indent=1))
    elif not quiet:
        for sheet in [*map(_sheet, document["tables"]), _sheet(document["claims"])]:
            if sheet.rows:
                console().print(_rich(sheet))
        click.echo(f"Results: {root / 'results.md'}")


def _carry_out(planned: Sequence[Planned], bars: Progress, workers: int) -> None:
    """Case by case, as the runs of a case share their clients; one bar over all rounds."""
    bar = bars.add_task("rounds", total=sum(p.config.rounds for p in planned), score="")
    for case in dict.fromkeys(p.case for p in planned):
        bars.update(bar, description=case)
        configs = [p.config for p in planned if p.case == case]
        try:
            run_all(configs, [_watch(bars, bar) for _ in configs], resume=True, workers=workers)
        except AtollError as reason:
            raise AtollError(f"{case}: {reason}") from reason


def _watch(bars: Progress, bar: Any) -> Watch:
    before = 0

    def watch(done: int, line: Line | None) -> None:
        nonlocal before
        bars.update(bar, advance=done - before)
        before = done

    return watch


def conclude(recipe: Recipe, scale: Scale, planned: Sequence[Planned], root: Path, seconds: float) -> dict[str, Any]:
    """Write results.json, .md, .csv and .tex and the report, from the finished runs."""
    loaded: dict[tuple[str, str], list[runs.Run]] = defaultdict(list)
    for p in planned:
        loaded[p.case, p.method].append(runs.load(Path(str(p.config.out))))
    tables, claims = papers.sheets(recipe, papers.compared(recipe, loaded)), papers.verdicts(recipe, loaded)
    document = {
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": scale.name,
        "note": scale.note,
        "notes": list(recipe.notes),
        "seeds": list(scale.seeds),
        "command": f"atoll paper run {recipe.name} --scale {scale.name}",
        "version": __version__,
        "seconds": seconds,
        "run_seconds": sum(float(run.summary["seconds"]) for side in loaded.values() for run in side),
        "tables": [sheet._asdict() for sheet in tables],
        "claims": papers.claim_sheet(claims)._asdict(),
    }
    _write(document, [*tables, papers.claim_sheet(claims)], root)
    html.write([Path(str(p.config.out)) for p in planned], root / "report.html")
    return document


def _write(document: dict[str, Any], sheets: Sequence[Sheet], root: Path) -> None:
    filled = [sheet for sheet in sheets if sheet.rows]
    write_whole(root / "results.json", (to_json(document, indent=1) + "\n").encode())
    for ending, form in ((".csv", as_csv), (".tex", latex)):
        text = "\n".join(form(sheet) for sheet in filled)
        write_whole(root / f"results{ending}", text.encode())
    write_whole(root / "results.md", page(document).encode())


def page(document: dict[str, Any]) -> str:
    """The results of a recipe as a Markdown section."""
    lines = [f"## {document['title']}", "", document["note"], "", "```", document["command"], "```", ""]
    for table in [*document["tables"], document["claims"]]:
        sheet = _sheet(table)
        if sheet.rows:
            lines += [f"**{sheet.title}**", "", markdown(sheet)]
    lines += [f"- {note}" for note in document["notes"]]
    minutes = document["run_seconds"] / 60
    lines += ["", f"Version {document['version']}, seeds {document['seeds']}, {minutes:.0f} minutes of runs.", ""]
    return "\n".join(lines)


def _sheet(table: dict[str, Any]) -> Sheet:
    return Sheet(table["title"], table["columns"], table["rows"])


def _rich(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(sheet.columns):
        table.add_column(column, justify="right" if at else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table
