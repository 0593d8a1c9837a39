"""States that the server keeps for each client."""

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
    """The server's own states of clients, in a store; made when first asked for, None for methods that keep none."""

    def __init__(self, method: AnyMethod, task: Task, seed: int, store: Store):
        self._method, self._task, self._seed, self._store = method, task, seed, store

    def get(self, i: ClientId) -> Any:
        if not self._method.keeps_per_client_state:
            return None
        kept = self._store.get(i)
        return (
            method_calls.init_per_client(self._method, self._task, i, key(self._seed, "desk", i))
            if kept is None
            else kept
        )

    def download(self, server: Any, to: ClientId, r: Round) -> Any:
        """What a client receives."""
        return method_calls.download(self._method, server, self.get(to), to, self._task, r)

    def served(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        """Replies as ``aggregate`` gets them: with desks, after the server's work for each client."""
        return self._per_client(server, replies, r) if self._method.keeps_per_client_state else replies

    def _per_client(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        for reply in replies:
            k = key(self._seed, "serve", *r, reply.sender)
            with torch.no_grad():
                per_client = self.get(reply.sender)
                upload, per_client = to_contiguous(
                    method_calls.serve_client(self._method, server, per_client, reply, self._task, r, k)
                )
            self._store.put(reply.sender, per_client)
            yield Reply(reply.sender, upload)
