"""``atoll attack``: show what a curious server can infer from one round."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.table import Table

from ..analysis.inference_attacks.base import AttackResult, UploadFilter
from ..analysis.inference_attacks.run import repeat_attacks
from ..clients.tasks import no_filter
from ..config import from_dict
from ..core.problems import Classes
from ..engine.setup import Setup, build_setup
from ..errors import AtollError
from ..privacy.policy import Privacy
from ..utils.files import to_json
from ..utils.runtime import one_thread
from .console import console, working
from .options import ConfigCommand, config_options, given

GATE = 10  # Rows of a class, unless --min-class-count is given.
WITHOUT = ("method", "rate", "eval_every", "checkpoint_every", "store", "cache", "out", "strikes", "max_norm", "robust")


@click.command(cls=ConfigCommand)
@click.argument("name", metavar="METHOD")
@config_options(*WITHOUT)
@click.option(
    "--gate/--no-gate", default=None, help="Attack uploads with the gate only, or without it only; default: both."
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="With --dp: number of draws of the noise; the column has their mean and range.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def attack(
    name: str, config_file: Path | None, gate: bool | None, draws: int, as_json: bool, **options: object
) -> None:
    """Show what an honest but curious server can infer from one round of METHOD, with and without the gate.

    The gate is the filter of --min-class-count (10 unless given) and --cov-source. --dp adds a column with noise.
    """
    values = {**given(options, config_file), "method": name}
    plain = from_dict({k: v for k, v in values.items() if not k.startswith("dp")})
    if plain.task not in (None, Classes.task):
        raise AtollError(
            f"atoll attack measures what uploads tell of classes, so it needs --task classes, not {plain.task}."
        )
    gated = replace(plain, min_class_count=plain.min_class_count or GATE)
    setups = {
        "open": build_setup(replace(plain, min_class_count=0, cov_source=None)) if gate is not True else None,
        "gate": build_setup(gated) if gate is not False else None,
        "noise": build_setup(from_dict(values)) if "dp" in values else None,
    }
    results: list[list[AttackResult]] = []
    with one_thread(), working(f"attacking {name}"):
        for column, setup in setups.items():
            if setup is not None:
                repeats = draws if column == "noise" else 1
                results.append(repeat_attacks(setup, column, partial(_make_filter, setup), repeats))
    _show(_joined(results), as_json)


def _make_filter(setup: Setup) -> UploadFilter:
    privacy = Privacy(setup.config, setup.method, setup.pool)
    return privacy.upload_filter if privacy.on else no_filter


def _joined(columns: list[list[AttackResult]]) -> list[AttackResult]:
    """Merge the results of all columns into one result for each attack."""
    found: dict[str, AttackResult] = {}
    for result in (f for results in columns for f in results):
        known = found.get(result.attack)
        ranges = {**(known.ranges if known else {}), **result.ranges}
        values = {**(known.found if known else {}), **result.found}
        found[result.attack] = (known or result)._replace(found=values, ranges=ranges)
    return list(found.values())


def _show(results: list[AttackResult], as_json: bool) -> None:
    if as_json:
        click.echo(to_json([result._asdict() for result in results], indent=1))
        return
    names = list(dict.fromkeys(name for result in results for name in result.found))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("attack", "tried", *names, "what the figure is"):
        table.add_column(head, justify="right" if head in ("tried", *names) else "left")
    for result in results:
        cells = (_cell(result, name) for name in names)
        table.add_row(result.attack, str(result.tried), *cells, result.measure)
    console().print(table)
    click.echo("open: uploads without the gate. gate: uploads with the gate. –: nothing to attack.")
    if any(result.ranges for result in results):
        click.echo("noise: mean over draws of the noise, with their least and greatest.")


def _cell(result: AttackResult, name: str) -> str:
    value = result.found.get(name)
    if value is None:
        return "–"
    return f"{value:.3f}" + ("" if name not in result.ranges else " ({:.3f} to {:.3f})".format(*result.ranges[name]))
