"""Run one method from Python."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from .config import from_dict
from .config.option_types import RunOptions
from .core.method import AnyMethod
from .engine import loggers
from .engine.build import run_experiment
from .engine.experiment import Watch
from .engine.python_parts import Metrics, Networks, all_settings, read_parts
from .engine.result import Result
from .engine.setup import Setup
from .storage import run_reader
from .storage.run_dir import RunDir
from .storage.run_reader import Run
from .utils.notebook import notebook_bars


def run(
    method: str | AnyMethod = "fedavg",
    data: Any = "digits",
    models: Networks = (),
    *,
    metric: Metrics = (),
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Run one method, like ``atoll run``.

    Args:
        method: a name such as ``"fedavg"`` or ``"dcpfl:no-al"``, or a method.
        data: a name or path; ``(X, y)``; a data frame; a data set of torch or Hugging Face; ``{client: (X, y)}``; see
            ``atoll.make_dataset``.
        models: names of architectures, or networks with ``body`` and ``head`` (see ``atoll.models.split``).
        metric: further metrics: names, or functions of logits and labels.
        out: run directory for everything that ``atoll run`` writes; without it nothing is written.
        resume: continue the run that is in ``out``.
        force: replace the run that is in ``out``.
        watch: called with the number of rounds done and, after an evaluation, its metrics; by default, a progress bar
            in notebooks.
        options: the options of the command line, such as ``clients=20`` or ``partition="iid"``. Values of ``--set``
            are ``settings={"lam": 0.5}``, those of ``--with`` are ``terms=["dw:mu=0.1"]``.

    Returns:
        The numbers of the run, and the models that gave them.

    Raises:
        AtollError: if an option is wrong, or if the method does not fit data and models.

    Example:
        >>> result = atoll.run("dcpfl", "digits", clients=5, rounds=3)
        >>> result.summary["personal"]["best_by_val"]
    """
    parts, (name,), entries = read_parts([method], data, models, metric, options)
    values: dict[str, Any] = {**options, **entries, "method": name, "out": None if out is None else str(out)}
    if not isinstance(method, str):
        values["settings"] = all_settings(method)
    setup = parts.build(from_dict(values, "the options"))
    with notebook_bars({setup.config.label: setup.config.rounds} if watch is None else {}) as bars:
        return run_setup(setup, resume=resume, force=force, watch=watch or bars[0]).result


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
            result = run_experiment(setup, run_dir, watch, tracking.log)
        finally:
            tracking.close()
        run = run_reader.load(run_dir.path)
        html.write_runs([run], run_dir.path / "report.html")
    return Finished(replace(result, notes=[*result.notes, *notes]), run)
