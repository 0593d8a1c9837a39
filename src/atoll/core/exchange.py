"""Define one exchange of a round between server and clients."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .payloads import Payload


class Exchange(NamedTuple):
    """The functions of one exchange. Their annotations declare the payload classes that are sent.

    Args:
        broadcast: ``(server, to, task, r, k) -> download``; with a state per client on the server
            ``(server, per_client, to, task, r, k) -> download``, where ``per_client`` is the client's, or all of
            them for a method that serves from all.
        client_update: ``(download, state, client, r, k) -> (upload, state)``.
        aggregate: ``(server, replies, task, r, k) -> server``.
        serve_client: ``(server, per_client, reply, task, r, k) -> (reply for aggregate, per_client)``, only with a
            state per client on the server.

    Example:
        >>> def exchanges(self):
        ...     return (Exchange(self.ask, self.answer, self.agree), Exchange(self.teach, self.learn, self.close))
    """

    broadcast: Callable[..., Payload]
    client_update: Callable[..., tuple[Any, Any]]
    aggregate: Callable[..., Any]
    serve_client: Callable[..., tuple[Any, Any]] | None = None
