"""``atoll deploy run``: run a method between the sites of a federation."""

from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import click

from ...config import Config
from ...deploy.federation_dir import FederationDir
from ...deploy.flower_adapter import private_names
from ...deploy.private_files import private_folder, write_private
from ...deploy.server.flower_control import Control
from ...deploy.server.job import DeploymentJob
from ...deploy.server.monitor import Book, Tail, follow, going_on
from ...deploy.server.processes import reached
from ...deploy.server.run import EVENTS
from ...deploy.site.privacy_rules import FLOOR
from ...deploy.transport.flower import write_app
from ...engine.experiment import Watch
from ...errors import AtollError
from ...experiments.planning import plan_configs, to_file_name
from ...report import table
from ...report.terminal_table import print_table
from ...storage import run_reader
from ...storage.metrics import RoundMetrics
from ...utils.files import to_json
from .. import console
from ..options import ConfigCommand, config_options, given

# Options that each site decides for itself, and options that have no meaning outside of a simulation.
NOT_HERE = (
    "method", "data", "data_dir", "rows", "clients", "new_clients", "partition", "models", "public", "public_data",
    "backend", "workers", "store", "cache", "clock", "global_test", "metric", "min_class_count", "out",
)  # fmt: skip


@click.command(cls=ConfigCommand)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.argument("method")
@config_options(*NOT_HERE)
@click.option(
    "--data", help="Name of the sites' data; a name from `atoll data` brings its statistics.  [default: sites]"
)
@click.option("--out", help="Run directory.  [default: DIR/runs/METHOD-SEED]")
@click.option("--public", help="File of public samples, for methods that distil; the same as at the sites.")
@click.option(
    "--min-class-count",
    type=int,
    help="Smallest number of samples of a class whose statistics may leave a site; 0: sites decide."
    f"  [default: {FLOOR}]",
)
@click.option("--sites", help="Only these sites, such as north,south.  [default: all that are not revoked]")
@click.option(
    "--round-timeout", type=float, default=600.0, show_default=True, help="Seconds that a round waits for sites."
)
@click.option("--min-clients", type=int, help="Smallest number of sites in a round.  [default: all]")
@click.option("--wait", type=float, default=3600.0, show_default=True, help="Seconds to wait for enough sites.")
@click.option("--force", is_flag=True, help="Replace an existing run in the directory.")
@console.quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    folder: Path, method: str, config_file: Path | None, data: str | None, out: str | None, sites: str | None,
    public: str | None, round_timeout: float, min_clients: int | None, wait: float, force: bool, quiet: bool,
    as_json: bool, **options: object,
) -> None:  # fmt: skip
    """Run one METHOD between the sites of the federation in DIR.

    The same command continues an interrupted run from its last checkpoint.
    """
    private_names.check(private_names.SERVER_PARTS)
    directory = FederationDir(folder)
    values = {
        "data": "sites",
        "min_class_count": FLOOR,
        **given(options, config_file),
        **({"data": data} if data else {}),
    }
    config = plan_configs([method], values)[0]
    place = Path(out).absolute() if out else directory.runs / f"{to_file_name(config.label)}-{config.seed}"
    job = DeploymentJob(
        run_dir=str(place),
        config=replace(config, out=str(place)).to_dict(),
        sites=_sites(directory, sites),
        round_timeout=round_timeout,
        min_clients=min_clients,
        wait_limit=wait,
        public=str(Path(public).absolute()) if public else "",
        force=force,
    )
    _carry_out(directory, config, job, quiet or as_json)
    _show(place, quiet, as_json)


def _sites(directory: FederationDir, only: str | None) -> dict[str, str]:
    """Return the sites that take part, with their public keys."""
    federation = directory.read()
    chosen = [name.strip() for name in only.split(",")] if only else list(federation.accepted())
    for name in chosen:
        if reason := federation.site(name).refusal():
            raise AtollError(f"The key of {name!r} is {reason}: leave the site out, or reissue its key.")
    if not chosen:
        raise AtollError("No site of this federation has a valid key. See: atoll deploy show DIR")
    return {name: federation.sites[name].key for name in chosen}


def _carry_out(directory: FederationDir, config: Config, job: DeploymentJob, quiet: bool) -> None:
    with reached(directory) as flower:
        number = _start_or_find(directory, flower, job)
        with console.progress(quiet) as bars:
            bar = console.follow(bars, f"{config.label} seed {config.seed}", config.rounds)
            poll = _make_poll(Path(job.run_dir), bar, bars.console.print if not quiet else lambda text: None)
            try:
                status = follow(flower, number, poll)
            except KeyboardInterrupt:
                flower.stop(number)
                raise
        log = directory.logs / f"run-{number}.log"
        write_private(log, flower.log(number).encode())
    if status.outcome != "completed":
        raise AtollError(
            f"{_last_error(Path(job.run_dir)) or f'The run ended as {status.outcome}.'} See {log}. "
            "The same command continues from the last checkpoint."
        )


def _start_or_find(directory: FederationDir, flower: Control, job: DeploymentJob) -> int:
    """Start a run, or find the same run if it is still going on; return its number."""
    book, path, text = Book(directory), _job_file(directory, job), to_json(asdict(job), indent=1)
    number = going_on(flower, book, job.run_dir)
    if number is None:
        write_private(path, text.encode())
        number = flower.start(write_app(directory.state / "app"), {"job": path.name})
        book.write(number, job.run_dir)
    elif path.read_text() != text:
        raise AtollError("This run is going on already, with other options. Stop it first: atoll deploy stop DIR")
    return number


def _job_file(directory: FederationDir, job: DeploymentJob) -> Path:
    folder = directory.state / "jobs"
    private_folder(folder)
    return folder / f"{Path(job.run_dir).name}-{sha256(job.run_dir.encode()).hexdigest()[:8]}.json"


def _make_poll(out: Path, bar: Watch, say: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that shows new rounds in the bar and prints new notes of the server."""
    metrics, events = Tail(out / "metrics.jsonl"), Tail(out / EVENTS, skip=True)

    def poll() -> None:
        for line in metrics.fresh():
            bar(line["round"], cast(RoundMetrics, line))
        for event in events.fresh():
            if event["event"] == "note":
                say(event["text"])

    return poll


def _last_error(out: Path) -> str | None:
    last = None
    for event in Tail(out / EVENTS).fresh():
        last = event["text"] if event["event"] == "error" else None
    return last


def _show(out: Path, quiet: bool, as_json: bool) -> None:
    loaded = run_reader.load(out)
    if as_json:
        click.echo(to_json(dict(loaded.summary), indent=1))
    elif not quiet:
        print_table(console.console(), table.rows([loaded]))
        click.echo(f"Report: {_relative(out / 'report.html')}")


def _relative(path: Path) -> Path:
    """Return a path relative to the working directory, if it is below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
