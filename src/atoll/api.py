"""Run one method from Python."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from .clients.metrics import Metric, check_name, load_metrics
from .config import Config, from_dict
from .core.method import AnyMethod
from .data.dataset import Dataset
from .engine import loggers
from .engine.build import run_experiment
from .engine.experiment import Watch
from .engine.result import Result
from .engine.setup import Setup, build_setup
from .errors import AtollError
from .methods._factory import settings_of
from .storage import run_reader
from .storage.metrics import RoundMetrics
from .storage.run_dir import RunDir
from .storage.run_reader import Run


def run(
    method: str | AnyMethod = "fedavg",
    data: str | Dataset = "digits",
    models: str | nn.Module | Sequence[str | nn.Module] = (),
    *,
    metric: str | Metric | Sequence[str | Metric] = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Any,
) -> Result:
    """Run one method, like ``atoll run``.

    Args:
        method: a name such as ``"fedavg"`` or ``"dcpfl:no-al"``, or a method.
        data: a name or path, or a data set.
        models: names of architectures, or networks with ``body`` and ``head`` (see ``atoll.models.split``).
        metric: further metrics: names, or functions of logits and labels.
        out: run directory for everything that ``atoll run`` writes; without it nothing is written.
        resume: continue the run that is in ``out``.
        force: replace the run that is in ``out``.
        watch: called with the number of rounds done and, after an evaluation, its metrics.
        options: the options of the command line, such as ``clients=20`` or ``partition="iid"``.

    Returns:
        The numbers of the run, and the models that gave them.

    Raises:
        AtollError: if an option is wrong, or if the method does not fit data and models.

    Example:
        >>> result = atoll.run("dcpfl", "digits", clients=5, rounds=3)
        >>> result.summary["personal"]["best_by_val"]
    """
    if not isinstance(method, str):
        _check_unused(options, method)
    given = [models] if isinstance(models, str | nn.Module) else list(models)
    nets = [m for m in given if isinstance(m, nn.Module)]
    if nets and len(nets) < len(given):
        raise AtollError("Give models by name or as modules, not both in one run.")
    measures = [metric] if isinstance(metric, str) or callable(metric) else list(metric)
    named: dict[str, Any] = {
        "method": method if isinstance(method, str) else type(method).__name__.lower(),
        "data": data if isinstance(data, str) else data.name,
        "models": [] if nets else given,
        "metric": [m if isinstance(m, str) else m.__name__ for m in measures],
        "out": None if out is None else str(out),
    }
    if not isinstance(method, str):  # so that a resumed run can tell whether it is the same method
        named["settings"] = {s.name: s.default for s in settings_of(method)}
    objects = {
        "dataset": None if isinstance(data, str) else data,
        "nets": nets,
        "measures": _measures(measures),
        "method": None if isinstance(method, str) else method,
    }
    return run_config(from_dict({**options, **named}), resume=resume, force=force, watch=watch, **objects)


def _measures(given: Sequence[str | Metric]) -> dict[str, Metric] | None:
    """Return metrics by name if some are objects, else None."""
    found: dict[str, Metric] = {}
    for metric in given:
        if isinstance(metric, str):
            found |= load_metrics([metric], tuple(found))
        else:
            check_name(metric.__name__, tuple(found))
            found[metric.__name__] = metric
    return found if any(not isinstance(metric, str) for metric in given) else None


def _check_unused(options: Mapping[str, Any], method: AnyMethod) -> None:
    """Refuse options that a method given as an object would ignore."""
    for name in ("settings", "terms", "optimiser", "lr", "epochs", "steps", "batch_size"):
        if name in options:
            raise AtollError(f"{name} would change nothing: set it in {type(method).__name__}(...) instead.")


def run_config(
    config: Config, *, resume: bool = False, force: bool = False, watch: Watch | None = None, **objects: Any
) -> Result:
    """Build the setup of a configuration and run it; see :func:`run_setup`."""
    return run_setup(build_setup(config, **objects), resume=resume, force=force, watch=watch).result


class Finished(NamedTuple):
    """A run that has ended: its models and numbers, and its directory as read back, if there is one."""

    result: Result
    run: Run | None


def run_setup(setup: Setup, *, resume: bool = False, force: bool = False, watch: Watch | None = None) -> Finished:
    """Run what was set up; with ``out`` in the configuration, in a run directory that ends with a report.

    Args:
        setup: data, clients, models and method of the run.
        resume: continue the run that is in the directory.
        force: replace the run that is in the directory.
        watch: called with the number of rounds done and, after an evaluation, its metrics.

    Raises:
        AtollError: if the directory holds a run and neither ``resume`` nor ``force`` is set.
    """
    config = setup.config
    if config.out is None:
        return Finished(run_experiment(setup, watch=watch), None)
    from .report import html  # drawing takes long to import, and runs without a directory draw nothing

    loggers.check(config.track)
    with RunDir(Path(config.out)) as run_dir:
        run_dir.start(config, resume, force)
        notes: list[str] = []
        tracking = loggers.Tracking(config, run_dir.path, notes.append)
        try:
            result = run_experiment(setup, run_dir, _both(tracking.watch, watch))
        finally:
            tracking.close()
        run = run_reader.load(run_dir.path)
        html.write_runs([run], run_dir.path / "report.html")
    return Finished(replace(result, notes=[*result.notes, *notes]), run)


def _both(first: Watch, second: Watch | None) -> Watch:
    """Call two watches, of which the second may be missing."""

    def watch(done: int, line: RoundMetrics | None) -> None:
        first(done, line)
        if second is not None:
            second(done, line)

    return watch
