"""The same runs from Python."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from .clients.evaluation import OWN
from .clients.metrics import Metric, check_name, metrics
from .config import Config, from_dict
from .core.method import AnyMethod
from .data.dataset import Dataset
from .engine import loggers
from .engine.build import run_experiment
from .engine.experiment import Watch
from .engine.result import Result
from .engine.setup import build_setup
from .errors import AtollError
from .methods._factory import settings_of
from .storage.metrics import RoundMetrics
from .storage.run_dir import RunDir


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
    """Run one method; ``options`` are those of the command line, such as ``clients=20`` or ``partition="iid"``.

    Names may be replaced by objects: a method, a data set, networks with ``body`` and ``head`` (see ``models.split``),
    metrics (functions of logits and labels). With ``out``, everything is also written to a run directory.
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
    """Metrics by name, if some are objects."""
    found: dict[str, Metric] = {}
    for metric in given:
        if isinstance(metric, str):
            found |= metrics([metric], [*OWN, *found])
        else:
            check_name(metric.__name__, [*OWN, *found])
            found[metric.__name__] = metric
    return found if any(not isinstance(metric, str) for metric in given) else None


def _check_unused(options: Mapping[str, Any], method: AnyMethod) -> None:
    """A method given as an object has its settings already."""
    for name in ("settings", "terms", "optimiser", "lr", "epochs", "batch_size"):
        if name in options:
            raise AtollError(f"{name} would change nothing: set it in {type(method).__name__}(...) instead.")


def run_config(
    config: Config, *, resume: bool = False, force: bool = False, watch: Watch | None = None, **objects: Any
) -> Result:
    """Run a configuration; with ``config.out``, in a run directory that ends with a report."""
    setup = build_setup(config, **objects)
    if config.out is None:
        return run_experiment(setup, watch=watch)
    from .report import html  # drawing takes long to import, and runs without a directory draw nothing

    loggers.check(config.track)
    with RunDir(Path(config.out)) as run_dir:
        run_dir.start(setup.config, resume, force)
        notes: list[str] = []
        tracking = loggers.Tracking(setup.config, run_dir.path, notes.append)
        try:
            result = run_experiment(setup, run_dir, _both(tracking.watch, watch))
        finally:
            tracking.close()
        html.write([run_dir.path], run_dir.path / "report.html")
    return replace(result, notes=[*result.notes, *notes])


def _both(first: Watch, second: Watch | None) -> Watch:
    def watch(done: int, line: RoundMetrics | None) -> None:
        first(done, line)
        if second is not None:
            second(done, line)

    return watch
