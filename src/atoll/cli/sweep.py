"""``atoll sweep``: run a method over settings and choose the best."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from ..config import Config
from ..core.criterion import Criterion
from ..errors import AtollError
from ..experiments.planning import plan_configs, to_file_name
from ..experiments.search import MODELS, Axis, Bayes, Grid, Random, Search, parse_axis
from ..experiments.sweep import SweepPlan, run_plan
from ..experiments.trials import Trial, best_trial, document, is_matrix
from ..utils.files import to_json
from .console import console, follow, progress
from .options import ConfigCommand, config_options, given
from .run import new_directory, read_seeds, shared_options


@click.command(cls=ConfigCommand)
@click.argument("method")
@click.option(
    "--grid",
    "axes",
    multiple=True,
    required=True,
    metavar="NAME=V,V,...",
    help="Setting and its values, or LOW..HIGH; may be repeated.",
)
@click.option(
    "--random",
    "draws",
    type=click.IntRange(min=1),
    help="Try N points drawn at random instead of all combinations.",
)
@click.option(
    "--optuna", "trials", type=click.IntRange(min=1), help="Try N points proposed by Optuna (needs the extra optuna)."
)
@click.option(
    "--by",
    "model",
    type=click.Choice(MODELS),
    default="personal",
    show_default=True,
    help="Kind of model whose validation score decides.",
)
@config_options("method")
@click.option("--resume", is_flag=True, help="Continue interrupted runs in --out.")
@shared_options
def sweep(
    method: str, axes: tuple[str, ...], draws: int | None, trials: int | None, model: str, config_file: Path | None,
    resume: bool, seeds: str | None, splits: int | None, force: bool, quiet: bool, as_json: bool, **options: object,
) -> None:  # fmt: skip
    """Run METHOD over settings, and choose by validation: the highest accuracy, the lowest error.

    A name given with --grid is an option of `atoll run`, such as lr or rate, or a setting of the method, such as lam.
    """
    values = given(options, config_file)
    base = plan_configs([method], values)[0]
    numbers = read_seeds(seeds, splits, options["seed"]) or [base.seed]
    if resume and base.out is None:
        raise AtollError("--resume needs the directory of the sweep: name it with --out.")
    root = Path(base.out or new_directory(f"sweep-{to_file_name(base.label)}-{to_file_name(base.data)}"))
    search = _search([parse_axis(text) for text in axes], draws, trials, base)
    request = SweepPlan(base, tuple(numbers), root, model, resume, force)
    with progress(quiet or as_json) as bars:
        found = run_plan(search, request, lambda c: follow(bars, Path(str(c.out)).name, c.rounds))
    if as_json:
        click.echo(to_json(document(found.tried, model), indent=1))
    elif not quiet:
        _show(found.tried, model)
        click.echo(f"Report: {root / 'report.html'}")


def _search(axes: Sequence[Axis], draws: int | None, trials: int | None, base: Config) -> Search:
    names = [a.name for a in axes]
    if len(set(names)) < len(names):
        raise AtollError("--grid names a setting twice. List all values of a setting in one --grid.")
    if draws is not None and trials is not None:
        raise AtollError("--random and --optuna cannot be combined. Give one of them.")
    if draws is not None:
        return Random(axes, draws, base.seed)
    return Grid(axes) if trials is None else Bayes(axes, trials, base.seed, base.workers or 1)


def _show(results: Sequence[Trial], model: str) -> None:
    out, chosen = console(), best_trial(results)
    out.print(_matrix(results, chosen) if is_matrix([t.point for t in results]) else _list(results, chosen))
    words = ", ".join(f"{name}={v}" for name, v in chosen.point.items())
    score, unit = chosen.criterion, " %" if chosen.criterion.percent else ""
    reached = f"validation {score.cell(chosen.val)}{unit}, test {score.cell(chosen.test)}{unit}"
    out.print(f"Chosen by {model} validation {score.title}: {words} ({reached}).")


def _list(results: Sequence[Trial], chosen: Trial) -> Table:
    score = chosen.criterion
    unit = " (%)" if score.percent else ""
    table = Table(title=f"{score.heading}{unit} at the round with the best validation {score.title}")
    for name in (*results[0].point, "validation", "test"):
        table.add_column(name, justify="right")
    for t in sorted(results, key=lambda t: score.rank(t.val)):
        cells = (*map(str, t.point.values()), _cell(t.val, t.val_std, score), _cell(t.test, t.test_std, score))
        table.add_row(*cells, style="bold" if t is chosen else None)
    return table


def _matrix(results: Sequence[Trial], chosen: Trial) -> Table:
    """Show validation scores as a matrix of two settings."""
    down, across = results[0].point
    columns = list(dict.fromkeys(t.point[across] for t in results))
    rows = dict.fromkeys(t.point[down] for t in results)
    score = chosen.criterion
    table = Table(title=f"Validation {score.title}{' in %' if score.percent else ''}")
    for name in (f"{down} \\ {across}", *map(str, columns)):
        table.add_column(name, justify="right")
    for row in rows:
        here = {t.point[across]: t for t in results if t.point[down] == row}
        cells = [
            f"[bold]{_cell(t.val, t.val_std, score)}[/]" if t is chosen else _cell(t.val, t.val_std, score)
            for t in map(here.get, columns)
            if t
        ]
        table.add_row(str(row), *cells)
    return table


def _cell(mean: float, spread: float, score: Criterion) -> str:
    return score.cell(mean) + ("" if spread != spread else f" ± {score.cell(spread)}")
