"""Where the clients of a run are: in a simulation on this machine, or somewhere else."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..backends.base import Backend
from ..backends.loop import LoopBackend
from ..backends.multiprocess import ProcessBackend
from ..backends.ray_backend import RayBackend
from ..backends.vmap import VmapBackend
from ..clients.state_store import Store
from ..clients.tasks import UploadFilter
from ..clients.validation.validator import Validator
from ..storage.checkpoint import Checkpoints
from ..storage.metrics import OptionalMetrics, RoundMetrics
from .setup import Setup


class BackendInputs(NamedTuple):
    """What a backend may need of a run."""

    setup: Setup
    states: Store  # of clients
    upload_filter: UploadFilter
    cohort: int  # clients in a round
    checks: Validator
    checkpoints: Checkpoints | None  # None: the run is kept in memory alone


class Environment(Protocol):
    """What differs between a simulation and a run whose clients are elsewhere."""

    def open_backend(self, inputs: BackendInputs) -> Backend:
        """Open the backend that runs the clients."""
        ...

    def holdings(self) -> dict[str, Any]:
        """Return what holdings.json says of the clients' rows."""
        ...

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Continue after the rounds that have these lines of metrics."""
        ...

    def metrics(self) -> OptionalMetrics:
        """Return further entries of a line of metrics."""
        ...

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, Any]:
        """Return further entries of the summary, or other values of its entries."""
        ...


class Simulation:
    """All clients are on this machine, or on machines that share their rows with it."""

    def __init__(self, setup: Setup):
        self._setup = setup

    def open_backend(self, inputs: BackendInputs) -> Backend:
        return open_backend(inputs)

    def holdings(self) -> dict[str, Any]:
        return self._setup.federation.holdings()

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Do nothing: a simulation has no further past."""

    def metrics(self) -> OptionalMetrics:
        return {}

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, Any]:
        return {}


def open_backend(inputs: BackendInputs) -> Backend:
    """Open the backend that the configuration names; with one worker or client, processes would only cost time."""
    config, pool = inputs.setup.config, inputs.setup.pool
    audited = inputs.checkpoints is not None
    if config.backend == "vmap":
        return VmapBackend(pool, inputs.states, inputs.upload_filter)
    if config.backend == "ray":
        return RayBackend(pool, inputs.states, config.workers, inputs.upload_filter, audited)
    workers = min(config.workers or os.cpu_count() or 1, inputs.cohort)
    if config.backend == "processes" and workers > 1:
        return ProcessBackend(pool, inputs.states, workers, inputs.upload_filter, audited)
    return LoopBackend(pool, inputs.states, inputs.upload_filter)
