"""Define the interface of a backend, which runs the client functions of a method."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..clients.tasks import (
    ClientResult,
    ClientTask,
    ClientUpload,
)
from ..core.group_scores import Columns
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

    def assess(self, method: AnyMethod, seed: int, downloads: Mapping[ClientId, Payload]) -> Columns:
        """Evaluate the personal models of clients without training, and keep them if models are kept.

        Args:
            method: the method of the run.
            seed: seed of the run.
            downloads: the server's message to each client.

        Returns:
            The scores as columns, in the order of ``downloads``.
        """
        ...

    def close(self) -> None:
        """Release workers and other resources."""
        ...
