"""Define the environment of a deployed run: its backend, and its entries in metrics and summary."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from ...clients.state_store import RemoteState
from ...core.contract import contract
from ...engine.environment import BackendInputs
from ...engine.setup import Setup
from ...errors import AtollError
from ...storage.checkpoint import Checkpoints
from ...storage.metrics import OptionalMetrics, RoundMetrics
from ...typing import ClientId
from ..transport.requests import SiteRequests
from .backend import SiteBackend
from .handshake import holdings


class Sites:
    """The environment of a run whose clients are sites, which keep their states and their test rows.

    Args:
        setup: the run, with placeholders for the rows of sites.
        caller: sends requests to sites.
        name: identifier of the run, which requests to sites carry.
        least: sites that must answer in a round.
    """

    def __init__(self, setup: Setup, caller: SiteRequests, name: str, least: int):
        self._setup = setup
        self._caller = caller
        self._name = name
        self._least = least
        self._backend: SiteBackend | None = None

    def open_backend(self, inputs: BackendInputs) -> SiteBackend:
        """Return the backend that sends tasks to sites."""
        self._backend = SiteBackend(
            self._caller,
            self._name,
            inputs.stores.clients,
            contract(self._setup.method),
            self._least,
            partial(_needed_states, inputs.checkpoints),
            inputs.checks.limits,
            {i: inputs.setup.pool.test.size(at) for at, i in enumerate(inputs.setup.pool.ids)},
            inputs.stores.models,
            inputs.setup.pool.problem,
        )
        return self._backend

    def holdings(self) -> dict[str, object]:
        """Return the numbers of rows that sites have reported."""
        return holdings(self._setup)

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Continue the count of late answers after the last evaluated round."""
        self._caller.late += lines[-1]["late"] if lines else 0

    def metrics(self) -> OptionalMetrics:
        """Return the number of answers that came too late, for a line of metrics."""
        return {"late": self._caller.late}

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, object]:
        """Return the entries of deployed runs in the summary."""
        return {"backend": "sites", "evaluated": "at the sites", "late": lines[-1]["late"]}

    def end(self) -> None:
        """Tell the sites that the run has ended."""
        assert self._backend is not None, "the run has not begun"
        self._backend.end(self._setup.pool.ids)


def _needed_states(checkpoints: Checkpoints | None) -> dict[ClientId, list[RemoteState]]:
    """Return the states of clients that a resumed run may start from."""
    needed: dict[ClientId, list[RemoteState]] = defaultdict(list)
    if checkpoints is None:
        return needed
    for i, name in sorted(checkpoints.held()):
        with suppress(OSError, AtollError):  # A run does not resume from a damaged checkpoint.
            needed[i].append(cast(RemoteState, checkpoints.get_state(name)))
    return needed
