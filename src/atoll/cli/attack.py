"""``atoll attack``: show what a curious server can infer from one round."""

from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from ..analysis.inference_attacks import Figure, Way
from ..analysis.inference_attacks import attack as attack_method
from ..clients.tasks import no_filter
from ..config import from_dict
from ..engine.setup import build_setup
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def attack(name: str, config_file: Path | None, gate: bool | None, as_json: bool, **options: object) -> None:
    """Show what an honest but curious server can infer from one round of METHOD, with and without the gate.

    The gate is the filter of --min-class-count (10 unless given) and --cov-source. --dp adds a column with noise.
    """
    values = {**given(options, config_file), "method": name}
    plain = from_dict({k: v for k, v in values.items() if not k.startswith("dp")})
    gated = replace(plain, min_class_count=plain.min_class_count or GATE)
    setups = {
        "open": build_setup(replace(plain, min_class_count=0, cov_source=None)) if gate is not True else None,
        "gate": build_setup(gated) if gate is not False else None,
        "noise": build_setup(from_dict(values)) if "dp" in values else None,
    }
    figures: list[list[Figure]] = []
    with one_thread(), working(f"attacking {name}"):
        for column, setup in setups.items():
            if setup is not None:
                privacy = Privacy(setup.config, setup.method, setup.pool)
                way: Way = privacy.upload_filter if privacy.on else no_filter
                figures.append(attack_method(setup, {column: way}))
    _show(_joined(figures), as_json)


def _joined(columns: list[list[Figure]]) -> list[Figure]:
    """Merge the results of all columns into one figure for each attack."""
    found: dict[str, Figure] = {}
    for figure in (f for figures in columns for f in figures):
        known = found.get(figure.attack)
        found[figure.attack] = known._replace(found=known.found | figure.found) if known else figure
    return list(found.values())


def _show(figures: list[Figure], as_json: bool) -> None:
    if as_json:
        click.echo(to_json([figure._asdict() for figure in figures], indent=1))
        return
    names = list(dict.fromkeys(name for figure in figures for name in figure.found))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("attack", "tried", *names, "what the figure is"):
        table.add_column(head, justify="right" if head in ("tried", *names) else "left")
    for figure in figures:
        cells = (figure.found.get(name) for name in names)
        table.add_row(
            figure.attack, str(figure.tried), *("–" if v is None else f"{v:.3f}" for v in cells), figure.measure
        )
    console().print(table)
    click.echo("open: uploads without the gate. gate: uploads with the gate. –: nothing to attack.")
