"""Log metrics to TensorBoard, MLflow or Weights & Biases. A tracker that fails never stops a run."""

import importlib.util
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ..config import Config
from ..errors import AtollError, unknown
from ..storage import environment_file
from ..storage.metrics import RoundMetrics
from ..utils.plugins import load_plugins

PROJECT = "atoll"
DIRECTORY = "atoll.directory"  # the tag of a run of MLflow that names the run directory
MLFLOW_BATCH, LONGEST_NAME = 1000, 250  # metrics in a request to MLflow, and characters in the name of one
MOST_CLIENTS = 200  # clients with series of their own; trackers become slow with thousands of them


class Tracker(Protocol):
    """Logs one run to another program."""

    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        ...

    def close(self) -> None:
        """Mark the run as finished."""
        ...


class TensorBoard:
    """Writes event files to ``RUN/tensorboard``. A resumed run replaces what was logged of the rounds that it repeats.

    Args:
        config: configuration of the run.
        folder: the run directory.
    """

    def __init__(self, config: Config, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._open: Callable[..., Any] = partial(SummaryWriter, str(folder / "tensorboard"))
        self._config = config
        self._writer: Any = None

    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:  # Only now it is known from which round on older events are to be ignored.
            self._writer = self._open(purge_step=step)
            self._writer.add_text("config", f"```\n{self._config.to_yaml()}```")
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Logs to the tracking server of ``MLFLOW_TRACKING_URI``, or else to ``mlflow.db`` in the working directory.

    That file is the store that ``mlflow ui`` opens there, so that all runs can be compared. A resumed run goes on in
    its run of MLflow, which a tag finds by the run directory.

    Args:
        config: configuration of the run.
        folder: the run directory.
    """

    def __init__(self, config: Config, folder: Path):
        import mlflow
        from mlflow.entities import Metric, Param

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').absolute()}"
        self._client: Any = mlflow.tracking.MlflowClient(tracking_uri=uri)
        self._metric: Callable[..., Any] = Metric
        self._folder = folder
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self._run, self._logged = self._find_run(experiment) or (self._new_run(experiment), 0)
        params = [Param(name, str(value)[:500]) for name, value in config.to_dict().items()]
        if not self._logged:  # MLflow refuses to change a parameter.
            self._client.log_batch(self._run, params=params)

    def _find_run(self, experiment: str) -> tuple[str, int] | None:
        """Return the run of MLflow that this directory had before it was interrupted, and its last round."""
        if not (self._folder / environment_file.NAME).exists():
            return None
        found = self._client.search_runs([experiment], f'tags."{DIRECTORY}" = "{self._directory()}"', max_results=1)
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id, int(found[0].data.metrics.get("round", 0))

    def _new_run(self, experiment: str) -> str:
        made = self._client.create_run(experiment, run_name=self._folder.name, tags={DIRECTORY: self._directory()})
        return str(made.info.run_id)

    def _directory(self) -> str:
        return str(self._folder.absolute()).replace('"', "'")  # which would end the text in a search

    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        if step <= self._logged:  # A resumed run repeats rounds after its checkpoint, to the same numbers.
            return
        now = int(time.time() * 1000)
        metrics = [self._metric(_mlflow_name(name), number, now, step) for name, number in numbers.items()]
        for at in range(0, len(metrics), MLFLOW_BATCH):
            self._client.log_batch(self._run, metrics=metrics[at : at + MLFLOW_BATCH])

    def close(self) -> None:
        ended = (self._folder / "summary.json").exists()
        self._client.set_terminated(self._run, "FINISHED" if ended else "KILLED")


def _mlflow_name(name: str) -> str:
    """Return a name that MLflow takes: without characters such as brackets, and without parts such as ``..``."""
    parts = re.sub(r"[^\w/ :.-]", "_", name).split("/")
    return "/".join(part if part.strip(".") else "_" * max(1, len(part)) for part in parts)[:LONGEST_NAME]


class Wandb:
    """Logs to Weights & Biases: offline in ``RUN/wandb``, unless ``WANDB_MODE`` is set."""

    def __init__(self, config: Config, folder: Path):
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run: Any = wandb.init(
            project=PROJECT, name=folder.name, dir=str(folder), config=config.to_dict(), mode=mode
        )  # fmt: skip

    def line(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


# Each tracker: its class, the module that it needs, and the packages that pip installs for it.
TRACKERS: dict[str, tuple[Callable[[Config, Path], Tracker], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboard", "tensorboard"),
    "mlflow": (MLflow, "mlflow", "mlflow-skinny sqlalchemy alembic"),
    "wandb": (Wandb, "wandb", "wandb"),
}


@cache
def installed_trackers() -> Mapping[str, Callable[[Config, Path], Tracker]]:
    """Load the trackers of installed packages. Warns about a tracker that cannot be loaded, and leaves it out."""
    return load_plugins("atoll.trackers")


def check(names: Sequence[str]) -> None:
    """Raise an AtollError if a tracker does not exist or its package is not installed."""
    for name in names:
        if name in installed_trackers():
            continue
        if name not in TRACKERS:
            raise unknown("tracker", name, [*TRACKERS, *installed_trackers()])
        _, package, wanted = TRACKERS[name]
        if importlib.util.find_spec(package) is None:
            raise AtollError(f"--track {name} needs the package {package}: pip install {wanted}")


class Tracking:
    """Logs a run to all its trackers. A tracker that fails is reported once and not used again.

    Args:
        config: configuration of the run; ``track`` names the trackers.
        folder: the run directory.
        note: receives a sentence on each tracker that fails.
    """

    def __init__(self, config: Config, folder: Path, note: Callable[[str], None]):
        self._note = note
        self._trackers: dict[str, Tracker] = {}
        for name in config.track:
            self._attempt(name, partial(self._start, name, config, folder))

    def _start(self, name: str, config: Config, folder: Path) -> None:
        make = installed_trackers().get(name) or TRACKERS[name][0]
        self._trackers[name] = make(config, folder)

    def log(self, line: RoundMetrics, clients: pa.Table) -> None:
        """Log an evaluated round: its metrics, and the scores of each client if there are at most 200 of them.

        Args:
            line: the line of metrics.jsonl.
            clients: the scores of the round, one row for each client.
        """
        numbers = flatten_metrics(line)
        if len(clients) <= MOST_CLIENTS:
            numbers |= flatten_clients(clients)
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, partial(tracker.line, line["round"], numbers))

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.close)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as reason:  # A tracker may raise anything, and must not stop the run.
            self._trackers.pop(name, None)
            self._note(
                f"Tracking by {name} stopped ({type(reason).__name__}: {reason}). The run continues without {name}."
            )


def flatten_metrics(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Collect all numbers of a line of metrics. Nested entries get names such as ``personal/post/accuracy``."""
    found: dict[str, float] = {}
    for name, entry in line.items():
        if isinstance(entry, Mapping):
            found |= flatten_metrics(entry, f"{prefix}{name}/")
        elif isinstance(entry, int | float) and not isinstance(entry, bool) and entry == entry:
            found[prefix + name] = float(entry)
    return found


def flatten_clients(clients: pa.Table) -> dict[str, float]:
    """Collect the scores of clients under names such as ``client/north/accuracy``."""
    found: dict[str, float] = {}
    for row in clients.to_pylist():
        scores = {name: entry for name, entry in row.items() if isinstance(entry, float)}
        found |= flatten_metrics(scores, f"client/{row['client']}/")
    return found
