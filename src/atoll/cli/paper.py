"""``atoll paper``: reproduce the tables and figures of papers."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import Progress
from rich.table import Table

from ..config import Config
from ..engine.experiment import Watch
from ..experiments import claim_page, claim_runs, claim_verdicts, claims, coverage, papers, reproduction
from ..experiments.claim_records import ClaimRun
from ..experiments.claims import Claim
from ..experiments.paper_planning import PlannedRun, plan_runs
from ..experiments.papers import SCALES, Recipe
from ..experiments.reproduction import FIGURES
from ..experiments.sweep import Follow
from ..report.sheets import Sheet
from ..report.wording import count
from ..storage.metrics import RoundMetrics
from ..utils.files import to_json
from ..utils.parsing import Json
from .console import console, progress, quiet_option
from .signatures import WholeSentences


@click.group(cls=WholeSentences, invoke_without_command=True)
@click.pass_context
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def paper(ctx: click.Context, as_json: bool) -> None:
    """List the tables and figures of papers, run one, and compare with the printed numbers."""
    if ctx.invoked_subcommand is None:
        recipes = [papers.read_recipe(name) for name in papers.list_recipes()]
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


@paper.command("items")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_items(as_json: bool) -> None:
    """List what the papers print, the recipe that answers it, and what the recipe does differently."""
    found = coverage.list_items()
    if as_json:
        click.echo(to_json([item._asdict() for item in found], indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("paper", "printed", "recipe", "what differs, or why there is none"):
        table.add_column(title, overflow="fold")
    for item in found:
        table.add_row(item.paper, item.item, item.recipe or "–", "\n".join(item.remarks))
    console().print(table)


@paper.command()
@click.argument("name", metavar="PAPER/ITEM")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show the runs of a recipe at each scale, and notes on the printed numbers."""
    recipe = papers.read_recipe(name)
    if as_json:
        click.echo(to_json(_as_json(recipe), indent=1))
    else:
        _print_recipe(recipe)


def _as_json(recipe: Recipe) -> Json:
    """Return a recipe for ``--json``: notes, methods, figures, and the runs at each scale."""
    scales = {scale.name: plan_runs(recipe, scale, reproduction.WHERE) for scale in recipe.scales.values()}
    return {
        "name": recipe.name,
        "title": recipe.title,
        "notes": list(recipe.notes),
        "methods": {shown: said.run for shown, said in recipe.methods.items()},
        "figures": [figure.kind for figure in recipe.figures],
        "scales": {
            name: {
                "runs": len(planned),
                "cases": list(dict.fromkeys(p.case for p in planned)),
                "seeds": list(recipe.scales[name].seeds),
                "note": recipe.scales[name].note,
            }
            for name, planned in scales.items()
        },
    }


def _print_recipe(recipe: Recipe) -> None:
    out = console()
    out.print(f"[bold]{recipe.name}[/]  {recipe.title}")
    for note in recipe.notes:
        out.print(f"- {note}")
    for scale in recipe.scales.values():
        planned = plan_runs(recipe, scale, reproduction.WHERE)
        cases = list(dict.fromkeys(p.case for p in planned))
        size = f"{count(len(planned), 'run')}; {count(len(cases), 'case')}; seeds {list(scale.seeds)}"
        out.print(f"[bold]{scale.name}[/]: {size}. {scale.note}")
    ran = (f"{shown} ({said.run})" for shown, said in recipe.methods.items())
    out.print(f"methods: {', '.join(ran)}")
    if recipe.figures:
        out.print(f"figures: {', '.join(f.kind for f in recipe.figures)}")


@paper.command()
@click.argument("name", metavar="PAPER/ITEM")
@click.option("--scale", type=click.Choice(SCALES), default="cpu", show_default=True, help="How much to run.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of runs at the same time."
)
@click.option("--data-dir", help="Folder with data sets; default: ATOLL_DATA or a cache folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the results; default: below runs/papers.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def run(
    name: str, scale: str, workers: int, data_dir: str | None, out: Path | None, quiet: bool, as_json: bool
) -> None:
    """Run a recipe, and print the paper's numbers beside the measured ones.

    Interrupted runs continue; finished runs are not repeated.
    """
    recipe = papers.read_recipe(name)
    plan = reproduction.plan(recipe, scale, out, data_dir)
    with progress(quiet or as_json) as bars:
        found = reproduction.run_plan(plan, follow_all(bars, plan.runs), workers)
    for note in found.notes:
        click.echo(f"Note: {note}", err=True)
    if as_json:
        click.echo(to_json(found.document, indent=1))
    elif not quiet:
        for sheet in found.sheets:
            console().print(_rich(sheet))
        click.echo(f"Results: {found.root / 'results.md'}")
        click.echo(f"Figures: {found.root / FIGURES}")


@paper.command()
@click.argument("name", metavar="PAPER")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of runs at the same time."
)
@click.option("--data-dir", help="Folder with data sets; default: ATOLL_DATA or a cache folder.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    help="Folder of the records of finished runs; default: beside the declaration.",
)
@click.option("--page", is_flag=True, help="Run nothing: write RESULTS.md from the records.")
@quiet_option
def claim(
    name: str, workers: int, data_dir: str | None, records: Path | None, page: bool, quiet: bool
) -> None:  # fmt: skip
    """Decide the main claim of a paper by its declared experiment, papers/PAPER/claim.yaml.

    Every finished run leaves a small record and is not repeated; an interrupted run continues.
    """
    declared = claims.read_claim(name)
    folder = papers.recipes_dir() / name
    kept = records or folder / "results" / "claim"
    if not page:
        with progress(quiet) as bars:
            claim_runs.run_claim(
                declared, kept, reproduction.WHERE / name / "claim", _follow_runs(bars, declared), workers, data_dir
            )
    report = claim_page.ClaimReport(declared, kept)
    for sheet in (
        claim_verdicts.score_sheet(declared, report.records, report.chosen),
        claim_verdicts.comparison_sheet(declared, report.decided),
    ):
        if not quiet:
            console().print(_rich(sheet))
    click.echo(f"Results: {claim_page.write_report(report, folder if records is None else records)}")


def _follow_runs(bars: Progress, declared: Claim) -> claim_runs.Follow:
    """Show one bar over all runs of a claim."""
    total = len(claim_runs.plan_search(declared)) + len(declared.seeds) * len(declared.methods)
    bar = bars.add_task("runs of the claim", total=total, score="")

    def watch(planned: ClaimRun) -> Watch:
        def advance(done: int, line: RoundMetrics | None) -> None:
            label = f"{planned.part}: {planned.method}, seed {planned.config.seed}, round {done}"
            bars.update(bar, advance=int(done == planned.config.rounds and line is not None), description=label)

        return advance

    return watch


def follow_all(bars: Progress, planned: Sequence[PlannedRun]) -> Follow:
    """Show one bar over the rounds of all runs."""
    bar = bars.add_task(f"0 of {len(planned)} runs", total=sum(p.config.rounds for p in planned), score="")
    over = 0

    def watch(config: Config) -> Watch:
        before = 0

        def advance(done: int, line: RoundMetrics | None) -> None:
            nonlocal before, over
            over += done == config.rounds > before
            bars.update(bar, advance=done - before, description=f"{over} of {len(planned)} runs")
            before = done

        return advance

    return watch


def _rich(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(sheet.columns):
        table.add_column(column, justify="right" if at else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table
