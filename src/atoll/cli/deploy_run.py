"""``atoll deploy run``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..compare import configs, safe
from ..config import Config
from ..deploy.extra import require
from ..deploy.job import Follower, Job, check_idle, follow, nodes
from ..deploy.layout import Home
from ..deploy.server import reached
from ..errors import AtollError
from ..files import to_json
from ..report import runs, table
from .options import config_options, given
from .show import console, progress
from .show import follow as bar

# What a simulation decides for the sites, and here they decide themselves; and what has no meaning without simulation.
NOT_HERE = (
    "method", "data", "data_dir", "rows", "clients", "partition", "models", "public", "public_data",
    "backend", "workers", "store", "cache", "clock", "global_test", "out",
)  # fmt: skip


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.argument("method")
@config_options(*NOT_HERE)
@click.option("--out", help="Run directory.  [default: DIR/runs/METHOD-SEED]")
@click.option("--sites", help="Only these sites, such as north,south.  [default: all that are not revoked]")
@click.option("--round-timeout", type=float, default=600.0, show_default=True, help="Seconds a round waits for sites.")
@click.option("--min-clients", type=int, help="Sites that a round needs at least.  [default: all]")
@click.option("--wait", type=float, default=3600.0, show_default=True, help="Seconds to wait for enough sites.")
@click.option("--force", is_flag=True, help="Replace the run that is in the directory.")
@click.option("--quiet", is_flag=True, help="No progress bar and no table.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    folder: Path, method: str, config_file: Path | None, out: str | None, sites: str | None, round_timeout: float,
    min_clients: int | None, wait: float, force: bool, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run one METHOD between the sites of the federation in DIR.

    The same command again goes on from the last checkpoint of a run that was interrupted.
    """
    require()
    home = Home(folder)
    config = configs([method], given(options, config_file))[0]
    config = replace(
        config, out=str(Path(out).absolute() if out else home.runs / f"{safe(config.label)}-{config.seed}")
    )
    job = _job(home, config, sites, min_clients, round_timeout, wait, force)
    _carry_out(home, config, job, quiet, as_json)
    _show(Path(job.out), quiet, as_json)


def _job(
    home: Home, config: Config, sites: str | None, least: int | None, round_timeout: float, wait: float, force: bool
) -> Job:
    federation = home.read()
    chosen = [name.strip() for name in sites.split(",")] if sites else list(federation.accepted())
    for name in chosen:
        if reason := federation.site(name).refusal():
            raise AtollError(f"The key of {name!r} is {reason}: leave the site out, or reissue its key.")
    if not chosen:
        raise AtollError("No site of this federation has a key that is good. See: atoll deploy show DIR")
    least = len(chosen) if least is None else least
    if not 1 <= least <= len(chosen):
        raise AtollError(f"--min-clients must be between 1 and {len(chosen)}, the number of sites, not {least}.")
    if min(round_timeout, wait) <= 0:
        raise AtollError("--round-timeout and --wait are seconds, above 0.")
    return Job(
        federation=str(home.path),
        out=str(config.out),
        config=config.to_dict(),
        sites=chosen,
        nodes=nodes(home),
        round_timeout=round_timeout,
        min_clients=least,
        wait=wait,
        force=force,
    )


def _carry_out(home: Home, config: Config, job: Job, quiet: bool, as_json: bool) -> None:
    from ..deploy.apps import write_app

    with reached(home) as flower:
        check_idle(flower)
        app = home.state / "app"
        write_app(app)
        number = flower.start(app, {"job": str(job.write(home))})
        with progress(quiet or as_json) as bars:
            follower = Follower(Path(job.out), bar(bars, f"{config.label} seed {config.seed}", config.rounds))
            try:
                status = follow(flower, number, follower.look)
            except KeyboardInterrupt:
                flower.stop(number)
                raise
        (home.logs / f"run-{number}.log").write_text(flower.log(number))
    if status.outcome != "completed":
        _fail(home, number, status.outcome, status.details)


def _fail(home: Home, number: int, outcome: str, details: str) -> None:
    log = home.logs / f"run-{number}.log"
    said = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    last = f" Its last words: {said[-1]}" if said else ""
    raise AtollError(
        f"The run ended as {outcome}{': ' + details if details else ''}.{last} See {log}. "
        "The same command again goes on from the last checkpoint."
    )


def _show(out: Path, quiet: bool, as_json: bool) -> None:
    loaded = runs.load(out)
    if as_json:
        click.echo(to_json(dict(loaded.summary), indent=1))
    elif not quiet:
        table.print_table(console(), table.rows([loaded]))
        click.echo(f"Report: {out / 'report.html'}")
