"""``atoll run`` and ``atoll compare``: run one method, or several on the same clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TypeVar

import click

from ..config import Config, read_yaml
from ..core.hooks import Reduces
from ..engine.divergence import advise_on_rate
from ..errors import AtollError
from ..experiments.comparison import run_placed
from ..experiments.planning import assign_directories, plan_configs, to_file_name
from ..experiments.runner import run_one
from ..methods import _registry
from ..methods._factory import make, split_variant
from ..report import table
from ..report.groups import groups
from ..report.majority import warn_of_single_classes
from ..report.owners import compare_with_alone, describe_gains
from ..report.terminal_table import print_table
from ..storage import run_reader
from ..storage.environment_file import describe_changes
from ..storage.group_dir import PLAN, read_plan
from ..storage.run_dir import CONFIG, holds_run, runs_inside
from ..utils.files import to_json
from ..utils.parsing import Field, Spec, several
from ..utils.signals import Stopped, stoppable
from .console import console, follow, progress, quiet_option
from .options import ConfigCommand, config_options, given

F = TypeVar("F", bound=Callable[..., object])
DIVERGED, DIVERGED_CODE = "diverged", 3
SEEDS = Spec("SEED,SEED,..., such as 0,1,2", several(Field("SEED", "a whole number", int), ","))


def shared_options(command: F) -> F:
    """Add the options that do not affect results: seeds, output and existing runs."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON."),
        quiet_option,
        click.option("--force", is_flag=True, help="Replace an existing run in the directory."),
        click.option("--seeds", help="Several seeds, such as 0,1,2: one run for each."),
        click.option(
            "--splits",
            type=click.IntRange(1),
            help="Repeat with N splits of the samples, one for each of the seeds 0 to N - 1.",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=ConfigCommand)
@click.argument("method", required=False)
@config_options("method")
@click.option("--resume", is_flag=False, flag_value="", metavar="[DIR]", help="Continue the run in DIR, or in --out.")
@shared_options
def run(
    method: str | None, config_file: Path | None, resume: str | None, seeds: str | None, splits: int | None,
    force: bool, quiet: bool, as_json: bool, **options: object,
) -> None:  # fmt: skip
    """Run one METHOD: a name (see `atoll methods`) or a Python file that defines one.

    A variant or settings may follow a colon: dcpfl:no-al, fedprox:mu=0.1, scd:no-gm,reg_every=2.

    \b
    Examples:
      atoll run dcpfl --data digits --clients 20 --partition dirichlet:0.3
      atoll run ditto --set lam=0.5 --lr 0.05 --seeds 0,1,2
      atoll run fedgh --data 'heart.csv?owner=hospital&label=num'
      atoll run --resume runs/dcpfl-digits
    """
    if resume and method is None and not Path(resume).is_dir():
        _check_method(resume)
        method, resume = resume, ""  # `--resume fedavg` means: resume with the method fedavg.
    values = given(options, config_file)
    _note_changes(config_file)
    numbers = read_seeds(seeds, splits, options["seed"])
    if resume and not holds_run(Path(resume)):
        finished = _launch(_planned_in(Path(resume), values), Path(resume), True, force, quiet, as_json)
    else:
        if resume:
            values = {**read_yaml(Path(resume) / CONFIG), **values, "out": resume}
        name = method or values.get("method")
        if name is None and resume is not None:
            raise AtollError("--resume needs the folder of a run to continue: `atoll run --resume runs/fedavg-digits`.")
        if name is None:
            raise AtollError("No method is given. Name one, such as `atoll run fedavg`; `atoll methods` lists them.")
        planned = plan_configs([str(name)], values, numbers)
        _check_place(planned[0], resume is not None)
        label = f"{to_file_name(planned[0].label)}-{to_file_name(planned[0].data)}"
        root = Path(planned[0].out or new_directory(label))
        placed = assign_directories(planned, root) if numbers else [replace(planned[0], out=str(root))]
        finished = _launch(placed, root, resume is not None, force, quiet, as_json)
    _exit_if_diverged(finished, any(r.status == DIVERGED for r in finished))


@click.command(cls=ConfigCommand)
@click.argument("names", nargs=-1, metavar="METHOD...")
@config_options("method")
@click.option("--resume", is_flag=False, flag_value="", metavar="[DIR]", help="Continue the runs in DIR, or in --out.")
@shared_options
def compare(
    names: tuple[str, ...], config_file: Path | None, resume: str | None, seeds: str | None, splits: int | None,
    force: bool, quiet: bool, as_json: bool, **options: object,
) -> None:  # fmt: skip
    """Run several METHODs on the same clients and seeds, and rank them.

    METHOD may have a variant, settings and regularisers: dcpfl:no-al, fedprox:mu=0.1, fedavg+dw:mu=0.1. `all` stands
    for every method that can run on these clients; without --public a tenth of the samples, at most 100 per class,
    becomes public data for methods that need it. A setting given with --set applies to all methods that have it;
    dcpfl.lam=0.2 applies to dcpfl only.
    """
    if resume and not Path(resume).is_dir():
        _check_method(resume)
        names, resume = (resume, *names), ""  # `--resume fedavg local` means: resume with these methods.
    values = given(options, config_file)
    _note_changes(config_file)
    if resume and not names:
        finished = _launch(_planned_in(Path(resume), values), Path(resume), True, force, quiet, as_json)
    else:
        if not names:
            raise AtollError("No methods are given. Name some, such as `atoll compare local fedavg`, or `all`.")
        place = {"out": resume} if resume else {}
        planned = plan_configs(names, {**values, **place}, read_seeds(seeds, splits, options["seed"]))
        if names == ("all",):
            _note_left_out(planned)
        _check_place(planned[0], resume is not None)
        root = Path(planned[0].out or new_directory(f"compare-{to_file_name(planned[0].data)}"))
        finished = _launch(assign_directories(planned, root), root, resume is not None, force, quiet, as_json)
    _exit_if_diverged(
        finished, all(r.status == DIVERGED for r in finished)
    )  # One diverged run of several is a result, and marked in the table.


def _note_changes(config_file: Path | None) -> None:
    """Print a note if the configuration is that of a run that was computed under other conditions."""
    for sentence in describe_changes(config_file.parent, "repeated") if config_file else ():
        click.echo(f"Note: {sentence}", err=True)


def _note_left_out(planned: Sequence[Config]) -> None:
    missing = _registry.methods().keys() - {c.method for c in planned}
    if missing:
        click.echo(
            f"Note: these methods cannot run on these clients and are left out: {', '.join(sorted(missing))}.", err=True
        )


def _exit_if_diverged(finished: Sequence[run_reader.Run], failed: bool) -> None:
    """Report the runs that diverged; end with the exit code of divergence if the command has failed."""
    for r in finished:
        if r.status == DIVERGED:
            click.echo(
                f"Diverged: {r.label} with seed {r.seed}. In round {r.summary['rounds']} no client sent a "
                f"usable upload, so the run ended there. Its files are in {r.path}. {advise_on_rate(r.config)}",
                err=True,
            )
    if failed:
        raise click.exceptions.Exit(DIVERGED_CODE)


def _launch(
    planned: Sequence[Config], root: Path, resume: bool, force: bool, quiet: bool, as_json: bool
) -> Sequence[run_reader.Run]:
    """Run one configuration in ``root``, or several below it, and print the table or the summaries."""
    for sentence in dict.fromkeys(map(_reductions, planned)):  # Once for all seeds.
        if sentence:
            click.echo(f"Warning: {sentence}", err=True)
    single = [c.out for c in planned] == [str(root)]
    try:
        with stoppable(), progress(quiet or as_json) as bars:
            watches = [follow(bars, f"{c.label} seed {c.seed}", c.rounds) for c in planned]
            if single:
                finished, notes = run_one(planned[0], watches[0], resume, force)
            else:
                comparison = run_placed(planned, watches, root, resume, force)
                finished, notes = list(comparison.runs), list(comparison.notes)
    except KeyboardInterrupt as stopped:
        click.echo(f"Interrupted. {_how_to_continue(root)}", err=True)
        raise click.exceptions.Exit(stopped.code if isinstance(stopped, Stopped) else 130) from None
    for note in dict.fromkeys(notes):  # Once for all methods and seeds.
        click.echo(f"Note: {note}", err=True)
    for warning in warn_of_single_classes(finished):
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        summaries = [dict(r.summary) for r in finished]
        click.echo(to_json(summaries[0] if single else summaries, indent=1))
    elif not quiet:
        print_table(console(), table.rows(finished))
        for gains in compare_with_alone(groups(finished)):
            click.echo(describe_gains(gains, finished[0].criterion.percent))
        click.echo(f"Report: {root / 'report.html'}")
    return finished


def _planned_in(root: Path, changes: dict[str, object]) -> list[Config]:
    """Read the runs that were planned in a directory, with the options that are given now in place of theirs."""
    if "out" in changes:
        raise AtollError("--resume DIR continues the runs in DIR, so --out would change nothing. Leave it out.")
    if holds_run(root):
        raise AtollError(f"{str(root)!r} holds a single run: continue it with `atoll run --resume {root}`.")
    return read_plan(root, changes)


def _how_to_continue(root: Path) -> str:
    """Say what an interrupted command leaves in its directory, and by which command to continue."""
    if not (holds_run(root) or (root / PLAN).exists()):
        return "Nothing was saved, because no run had begun."
    saved = (
        "Finished rounds are saved" if holds_run(root) or runs_inside(root) else "No round was finished; the plan is"
    )
    return f"{saved} in {root}: continue with `atoll run --resume {quote(str(root))}`."


def _reductions(config: Config) -> str | None:
    """Return a sentence if the settings turn the method into a simpler one."""
    method = make(config.method, config.settings, config.terms, config.optimiser_options)
    return method.reduces_to() if isinstance(method, Reduces) else None


def _check_method(name: str) -> None:
    base = split_variant(name.partition("+")[0])[0]
    if base not in _registry.methods() and not base.endswith(".py"):
        raise AtollError(f"There is no run directory {name!r} to resume. Check the path.")


def _check_place(config: Config, resume: bool) -> None:
    if resume and config.out is None:
        raise AtollError("--resume needs a run directory: write --resume DIR, or --resume with --out DIR.")


def read_seeds(text: str | None, splits: int | None, seed: object = None) -> list[int]:
    """Read the values of ``--seeds`` and ``--splits``; without any the list is empty.

    Every seed splits the rows anew, so that N splits are N seeds.

    Args:
        text: the value of ``--seeds``.
        splits: the value of ``--splits``.
        seed: the value of ``--seed`` on the command line.

    Raises:
        AtollError: two of ``--seed``, ``--seeds`` and ``--splits`` are given, or the seeds are malformed.
    """
    if seed is not None and (text is not None or splits is not None):
        several_of = "--seeds" if text is not None else "--splits"
        raise AtollError(f"--seed and {several_of} exclude each other: both say which seeds to run. Give one of them.")
    if text is not None and splits is not None:
        raise AtollError(
            "--seeds and --splits exclude each other: every seed divides the samples anew. Give one of them."
        )
    if splits is not None:
        return list(range(splits))
    return [] if text is None else list(SEEDS.parse("--seeds", text)[0])


def new_directory(name: str) -> Path:
    """Return a directory under runs/ that does not exist yet."""
    path, at = Path("runs") / name, 2
    while path.exists():
        path, at = Path("runs") / f"{name}-{at}", at + 1
    return path
