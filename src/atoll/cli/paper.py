"""``atoll paper``: the tables and figures of the papers, printed and measured."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from .._version import __version__
from ..config import Config
from ..engine.experiment import Watch
from ..experiments import papers
from ..experiments.papers import SCALES, Planned, Recipe, Scale
from ..experiments.runner import run_cases
from ..report import figures, html
from ..report.figures.base import FigureSpec, RunsByCase
from ..report.sheets import Sheet, as_csv, latex, markdown
from ..storage import run_reader
from ..storage.metrics import RoundMetrics
from ..utils.files import to_json, write_whole
from .console import console, progress, quiet_option

WHERE = Path("runs") / "papers"
FIGURES = "figures"  # the folder of figures, among the results


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def paper(ctx: click.Context, as_json: bool) -> None:
    """Tables and figures of the papers: list them, run one, and see paper and measured side by side."""
    if ctx.invoked_subcommand is None:
        recipes = [papers.read(name) for name in papers.names()]
        if as_json:
            listed = [
                {"name": r.name, "title": r.title, "figures": [f.kind for f in r.figures], "scales": list(r.scales)}
                for r in recipes
            ]
            click.echo(to_json(listed, indent=1))
        else:
            console().print(_listing(recipes))


def _listing(recipes: Sequence[Recipe]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("recipe", "what it shows", "figure", "scales", "printed numbers"):
        table.add_column(title, justify="right" if title == "printed numbers" else "left")
    for r in recipes:
        table.add_row(
            r.name, r.title, " ".join(f.kind for f in r.figures), " ".join(r.scales), str(len(r.printed) or "–")
        )
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
    if recipe.figures:
        out.print(f"figures: {', '.join(f.kind for f in recipe.figures)}")


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
        numbers = [figure["numbers"] for figure in document["figures"] if figure["numbers"]]
        for sheet in map(_sheet, [*document["tables"], *numbers, document["claims"]]):
            if sheet.rows:
                console().print(_rich(sheet))
        click.echo(f"Results: {root / 'results.md'}")
        click.echo(f"Figures: {root / FIGURES}")


def _carry_out(planned: Sequence[Planned], bars: Progress, workers: int) -> None:
    """All runs in one queue, so that no worker is idle while there are any; one bar over all their rounds."""
    bar = bars.add_task(f"0 of {len(planned)} runs", total=sum(p.config.rounds for p in planned), score="")
    cases: dict[str, list[Config]] = defaultdict(list)
    for p in planned:
        cases[p.case].append(p.config)
    over = 0

    def watch(config: Config) -> Watch:
        before = 0

        def told(done: int, line: RoundMetrics | None) -> None:
            nonlocal before, over
            over += done == config.rounds > before
            bars.update(bar, advance=done - before, description=f"{over} of {len(planned)} runs")
            before = done

        return told

    for note in run_cases(cases, watch, workers):
        bars.console.print(f"Note: {note}")


def conclude(recipe: Recipe, scale: Scale, planned: Sequence[Planned], root: Path, seconds: float) -> dict[str, Any]:
    """Write results.json, .md, .csv and .tex, the figures and the report, from the finished runs."""
    loaded: dict[tuple[str, str], list[run_reader.Run]] = defaultdict(list)
    for p in planned:
        loaded[p.case, p.method].append(run_reader.load(Path(str(p.config.out))))
    tables, claims = papers.sheets(recipe, papers.compared(recipe, loaded)), papers.verdicts(recipe, loaded)
    own = figures.made(recipe.figures, loaded)
    files = figures.write([*own, *_others(own, loaded)], root / FIGURES)
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
        "figures": [_figure(drawn) for drawn in own],
        "files": [str(path.relative_to(root)) for path in files],
    }
    numbers = [drawn.numbers for drawn in own if drawn.numbers]
    _write(document, [*tables, *numbers, papers.claim_sheet(claims)], root)
    html.write([Path(str(p.config.out)) for p in planned], root / "report.html", own)
    return document


def _others(own: Sequence[FigureSpec], shown: RunsByCase) -> list[FigureSpec]:
    """The figures that any runs have, but for those that the recipe asks for itself."""
    there = {drawn.name for drawn in own}
    return [drawn for drawn in figures.usual(shown) if drawn.name not in there]


def _figure(drawn: FigureSpec) -> dict[str, Any]:
    numbers = drawn.numbers._asdict() if drawn.numbers else None
    return {"file": f"{FIGURES}/{drawn.name}.png", "caption": drawn.caption, "numbers": numbers}


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
    for figure in document["figures"]:
        lines += [f"![{figure['caption']}]({figure['file']})", ""]
    numbers = [figure["numbers"] for figure in document["figures"] if figure["numbers"]]
    for table in [*document["tables"], *numbers, document["claims"]]:
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
