"""Keep the states that the server has for each client, for methods with per-client server state."""

from collections.abc import Iterator
from typing import Any

import torch

from ..core.method import AnyMethod
from ..core.prng import key
from ..core.task import Reply, Round, Task
from ..core.tree import to_contiguous
from ..typing import ClientId
from . import method_calls
from .state_store import Store


class ServerSideStates:
    """The server's states for its clients. A state is made when first needed.

    Args:
        method: the method of the run. Methods without per-client server state have None for every client.
        task: the server's view of the run.
        seed: seed of the run.
        store: holds the states between rounds.
    """

    def __init__(self, method: AnyMethod, task: Task, seed: int, store: Store):
        self._method = method
        self._task = task
        self._seed = seed
        self._store = store

    def get(self, i: ClientId) -> Any:
        """Return the server's state for client ``i``, or None if the method keeps none."""
        if not self._method.keeps_per_client_state:
            return None
        stored = self._store.get(i)
        if stored is not None:
            return stored
        return method_calls.init_per_client(self._method, self._task, i, key(self._seed, "desk", i))

    def download(self, server: Any, to: ClientId, r: Round) -> Any:
        """Make the server's message to client ``to``."""
        return method_calls.download(self._method, server, self.get(to), to, self._task, r)

    def serve_replies(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        """Run the server's work for each client and yield the replies that ``aggregate`` receives."""
        return self._serve_each(server, replies, r) if self._method.keeps_per_client_state else replies

    def _serve_each(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        for reply in replies:
            k = key(self._seed, "serve", *r, reply.sender)
            with torch.no_grad():
                per_client = self.get(reply.sender)
                upload, per_client = to_contiguous(
                    method_calls.serve_client(self._method, server, per_client, reply, self._task, r, k)
                )
            self._store.put(reply.sender, per_client)
            yield Reply(reply.sender, upload)
