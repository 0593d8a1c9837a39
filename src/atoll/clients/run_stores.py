"""Group what a run keeps for its clients between rounds."""

from dataclasses import dataclass

from .model_store import ModelStore
from .state_store import Store


@dataclass(frozen=True)
class RunStores:
    """The states and measured models of all clients of a run.

    Args:
        clients: the state of each client.
        server_side: the server's state for each client, for methods with per-client server state.
        models: the personal models that were measured.
    """

    clients: Store
    server_side: Store
    models: ModelStore

    def commit(self) -> None:
        """Make everything that was put since the last commit permanent."""
        self.models.commit()
        self.clients.commit()
        self.server_side.commit()

    def rollback(self) -> None:
        """Discard everything that was put since the last commit."""
        self.models.rollback()
        self.clients.rollback()
        self.server_side.rollback()

    def clear(self) -> None:
        """Remove all states and models."""
        self.models.clear()
        self.clients.clear()
        self.server_side.clear()
