"""The interface of a backend: where the functions of clients run."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..clients.evaluation import Score
from ..clients.tasks import (
    ClientResult,
    ClientTask,
    ClientUpload,
)
from ..core.method import AnyMethod
from ..typing import ClientId


class Backend(Protocol):
    """Runs client functions somewhere."""

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        """Outcomes in the order of the jobs, also of clients that turn out to be absent."""
        ...

    def results(self) -> Iterator[ClientResult]:
        """What came after the uploads of the last call of ``train``, once all of these have been read."""
        ...

    def commit(self, results: ClientResult) -> None:
        """Keep the client's next state: its upload was accepted."""
        ...

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """What a client kept, or what it starts with."""
        ...

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Any) -> Score:
        """Measure the personal model of a client as it is, without training."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
