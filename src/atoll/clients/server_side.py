"""Keep the states that the server has for each client, for methods with per-client server state."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from ..core.hooks import KeepsStatePerClient, ServesFromAll
from ..core.method import AnyMethod
from ..core.payloads import Payload
from ..core.per_client import PerClient
from ..core.prng import Key, key
from ..core.task import Reply, Round, Task
from ..core.tree import to_contiguous
from ..typing import ClientId
from . import method_calls
from .state_store import Store


@dataclass(frozen=True)
class ClientServers:
    """The server states of a federation without a server.

    Args:
        states: the server state of each client.
        neighbours: the clients whose uploads each client receives, besides its own.
    """

    states: Mapping[ClientId, Payload]
    neighbours: Mapping[ClientId, Collection[ClientId]]


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
        self._all = PerClient[Payload](store.get, store.__iter__)
        self._keeps_states = isinstance(method, KeepsStatePerClient)
        self._serves_from_all = isinstance(method, ServesFromAll)
        self._broadcast: tuple[Round, Key] | None = None  # the key of the exchange, which all clients share

    def get(self, i: ClientId) -> Payload | None:
        """Return the server's state for client ``i``, or None if the method keeps none."""
        if not self._keeps_states:
            return None
        stored: Payload | None = self._store.get(i)
        if stored is not None:
            return stored
        return method_calls.init_per_client(self._method, self._task, i, key(self._seed, "desk", i))

    def download(self, server: Payload | ClientServers, to: ClientId, r: Round) -> Payload:
        """Make the server's message to client ``to``, that of the client's own server state if there is no server."""
        server = server.states[to] if isinstance(server, ClientServers) else server
        if self._broadcast is None or self._broadcast[0] != r:
            self._broadcast = r, key(self._seed, "broadcast", *r)
        states = self._all if self._serves_from_all else self.get(to)
        return method_calls.download(self._method, server, states, to, self._task, r, self._broadcast[1])

    def serve_replies(self, server: Payload, replies: Iterator[Reply[Payload]], r: Round) -> Iterator[Reply[Payload]]:
        """Run the server's work for each client and yield the replies that ``aggregate`` receives."""
        return self._serve_each(server, replies, r) if self._keeps_states else replies

    def _serve_each(self, server: Payload, replies: Iterator[Reply[Payload]], r: Round) -> Iterator[Reply[Payload]]:
        for reply in replies:
            k = key(self._seed, "serve", *r, reply.sender)
            with torch.no_grad():
                per_client = self.get(reply.sender)
                assert per_client is not None
                upload, per_client = to_contiguous(
                    method_calls.serve_client(self._method, server, per_client, reply, self._task, r, k)
                )
            self._store.put(reply.sender, per_client)
            yield replace(reply, upload=upload)
