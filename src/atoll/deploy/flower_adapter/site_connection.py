"""Connect a site to the SuperLink: pull messages, and push replies."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .private_names import load

FIRST_PAUSE = 0.05  # seconds until a part of a message is asked for again that the server has not sent yet


class SiteConnection:
    """The accepted connection of a site to the SuperLink: pulls messages, and pushes replies.

    It has no way to ask for a run or for the app of a run.

    Args:
        connection: the functions that Flower yields for a connected node.
    """

    def __init__(self, connection: tuple[Any, ...]):
        self._flower = load("site")
        _, self._receive, self._send, _, _, self._pull_object, self._push_object, self._confirm = connection

    def receive(self) -> Any | None:
        """Return the next message for the site, or None if there is none. Its content is still at the SuperLink."""
        try:
            return self._receive()
        except self._flower.RunNotRunningException:
            return None

    @staticmethod
    def number(received: Any) -> str:
        """Return the number of a received message."""
        return str(received[0].metadata.message_id)

    def pull(self, received: Any) -> Any:
        """Return the content of a received message."""
        message, tree = received
        run, number = message.metadata.run_id, message.metadata.message_id
        wanted = list({part.object_id for part in self._flower.iterate_object_tree(tree)})
        with self._while_running():
            contents = self._flower.pull_objects(
                wanted, pull_object_fn=partial(self._pull_object, run), initial_backoff=FIRST_PAUSE
            )
            self._confirm(run, number)
        return self._flower.inflate_object_from_contents(number, contents).content

    def reply(self, received: Any, content: Any, seconds: float) -> None:
        """Push a reply to a message that took ``seconds`` to answer."""
        from flwr.app import Message

        flower = self._flower
        reply = Message(content, reply_to=received[0])
        with self._while_running(), flower.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = flower.get_all_nested_objects(reply)
            wanted, session = self._send(reply, flower.get_object_tree(reply), seconds)
            flower.push_object_contents_from_iterable(
                ((number, part.deflate()) for number, part in parts.items() if number in wanted),
                push_object_fn=partial(self._push_object, reply.metadata.run_id, session),
            )

    @contextmanager
    def _while_running(self) -> Iterator[None]:
        """Raise RunEnded in place of Flower's own exception, which is not a subclass of Exception."""
        try:
            yield
        except self._flower.RunNotRunningException:
            raise RunEnded("The run has ended.") from None


class RunEnded(Exception):
    """Raised for a message of a run that has ended in the meantime."""


@contextmanager
def connected_site(server: str, ca: Path | None, key: bytes) -> Iterator[SiteConnection]:
    """Connect a site to the SuperLink behind an address, and disconnect it at the end.

    Args:
        server: address of the gate.
        ca: certificate of the federation's authority; None for a connection without TLS.
        key: the site's private key, in OpenSSH form.

    Raises:
        SystemExit: if the SuperLink refuses the site; the reason is in the log of the process.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private = load_ssh_private_key(key, None)
    certificate = ca.read_bytes() if ca else None
    connect = load("site").http_request_response
    with connect(server, ca is None, certificate, (private, private.public_key())) as connection:
        yield SiteConnection(connection)
