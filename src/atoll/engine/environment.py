"""Define where the clients of a run are, and open the backend of a simulation on this machine."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..backends.base import Backend
from ..backends.loop import LoopBackend
from ..backends.multiprocess import ProcessBackend
from ..backends.ray_backend import RayBackend
from ..backends.vmap import VmapBackend
from ..clients.run_stores import RunStores
from ..clients.tasks import UploadFilter
from ..clients.validation.validator import Validator
from ..storage.checkpoint import Checkpoints
from ..storage.metrics import OptionalMetrics, RoundMetrics
from .execution import default_workers
from .setup import Setup


class BackendInputs(NamedTuple):
    """The parts of a run that a backend may need.

    Args:
        setup: configuration, method, data and clients.
        stores: states and measured models of the clients.
        upload_filter: changes uploads at the client, for privacy or simulated attacks.
        cohort: number of clients in a round.
        checks: validates uploads.
        checkpoints: checkpoints of the run, or None for a run in memory.
    """

    setup: Setup
    stores: RunStores
    upload_filter: UploadFilter
    cohort: int
    checks: Validator
    checkpoints: Checkpoints | None


class Environment(Protocol):
    """The parts of a run that differ between a simulation and a run with remote clients."""

    def open_backend(self, inputs: BackendInputs) -> Backend:
        """Open the backend that runs the clients."""
        ...

    def holdings(self) -> dict[str, Any]:
        """Return the content of holdings.json: the numbers of rows of the clients."""
        ...

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Continue after the rounds that have these lines of metrics."""
        ...

    def metrics(self) -> OptionalMetrics:
        """Return further entries of a line of metrics."""
        ...

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, Any]:
        """Return further entries of the summary, and replacements of its entries."""
        ...


class Simulation:
    """Environment with all clients on this machine, or on workers that receive their rows from it."""

    def __init__(self, setup: Setup):
        self._setup = setup

    def open_backend(self, inputs: BackendInputs) -> Backend:
        return open_backend(inputs)

    def holdings(self) -> dict[str, Any]:
        return self._setup.federation.holdings()

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Do nothing: a simulation has no further state."""

    def metrics(self) -> OptionalMetrics:
        return {}

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, Any]:
        return {}


def open_backend(inputs: BackendInputs) -> Backend:
    """Open the backend of the configuration. Replaces processes by a loop if only one would run."""
    config, pool = inputs.setup.config, inputs.setup.pool
    states, models = inputs.stores.clients, inputs.stores.models
    audited = inputs.checkpoints is not None
    if config.backend == "vmap":
        return VmapBackend(pool, states, inputs.upload_filter, models=models)
    if config.backend == "ray":
        return RayBackend(pool, states, config.workers, inputs.upload_filter, audited, models)
    workers = min(config.workers or default_workers(pool), inputs.cohort)
    if config.backend == "processes" and workers > 1:
        return ProcessBackend(pool, states, workers, inputs.upload_filter, audited, models)
    return LoopBackend(pool, states, inputs.upload_filter, isolate=True, models=models)
