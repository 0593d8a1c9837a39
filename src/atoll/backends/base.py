"""Define the interface of a backend, which runs the client functions of a method."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..clients.evaluation import Score
from ..clients.tasks import (
    ClientResult,
    ClientTask,
    ClientUpload,
)
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..typing import ClientId


class Backend(Protocol):
    """Run the client functions of a method."""

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        """Train clients, and yield their uploads in the order of the jobs.

        A client that is lost during training yields an upload that says so.

        Args:
            method: the method of the run.
            seed: seed of the run.
            jobs: one task for each client of the round.
        """
        ...

    def results(self) -> Iterator[ClientResult]:
        """Yield new states and scores for the last call of ``train``, after all its uploads have been read."""
        ...

    def commit(self, results: ClientResult) -> None:
        """Store the new state of a client whose upload was accepted."""
        ...

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """Return the stored state of client ``i``, or its first state."""
        ...

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Payload) -> Score:
        """Evaluate the personal model of client ``i`` without training."""
        ...

    def close(self) -> None:
        """Release workers and other resources."""
        ...
