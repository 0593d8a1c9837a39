"""Pull the replies of sites from the SuperLink, each within the size that was expected of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .fleet import LOST_CODES
from .private_names import load

PIECE = 5 * 2**20  # bytes of an array in one object: Flower sends longer arrays in pieces
OTHER_OBJECTS = 16  # objects of a reply beside the pieces of its array
OVERHEAD = 2**16  # bytes of these objects


class Reply(NamedTuple):
    """The content of a reply, an error code in its place, or the reason why it cannot be used."""

    ticket: str  # the message that was replied to
    content: Any = None
    code: str | None = None
    reason: str = ""


class _Dropped(Exception):
    """Raised for a reply without usable content, with an error code or a reason."""

    def __init__(self, code: str | None = None, reason: str = ""):
        super().__init__(reason)
        self.code = code


@dataclass
class _Pending:
    """A reply whose objects are being pulled."""

    ticket: str
    limit: int  # bytes
    missing: list[str]  # numbers of objects
    contents: dict[str, bytes] = field(default_factory=dict)


class Replies:
    """The replies to the messages of a run.

    A reply beyond its limit is dropped before it is in memory. A site that announces a reply and sends its parts slowly
    delays no other site: parts that are not there yet are asked for at the next call.

    Args:
        grid: Flower's interface to the nodes of a run.
    """

    def __init__(self, grid: Any):
        self._grid = grid
        self._flower = load("replies")
        self._pending: dict[str, _Pending] = {}  # by number of the reply

    @property
    def arriving(self) -> bool:
        """True while parts of a reply are missing."""
        return bool(self._pending)

    def pull(self, limits: Mapping[str, int]) -> list[Reply]:
        """Return the replies that are complete, without waiting for others.

        Args:
            limits: most bytes of the reply to each message.
        """
        self._list_new(limits)
        replies = {number: self._advance(number, pending) for number, pending in self._pending.items()}
        complete = {number: reply for number, reply in replies.items() if reply is not None}
        for number in complete:
            del self._pending[number]
            self._delete(number)
        return list(complete.values())

    def _list_new(self, limits: Mapping[str, int]) -> None:
        """List replies that have come since the last call. Flower lists a reply once, and then gives errors for it."""
        known = {pending.ticket for pending in self._pending.values()}
        wanted = [ticket for ticket in limits if ticket not in known]
        if not wanted:
            return
        found = self._grid._runtime_client.PullMessages(self._flower.PullAppMessagesRequest(message_ids=wanted))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            ticket = message.metadata.reply_to_message_id
            if ticket in limits:
                objects = list({part.object_id for part in self._flower.iterate_object_tree(tree)})
                self._pending[message.metadata.message_id] = _Pending(ticket, limits[ticket], objects)

    def _advance(self, number: str, pending: _Pending) -> Reply | None:
        """Pull the missing parts of a reply; return None if some are not there yet."""
        try:
            if not self._pull_objects(pending):
                return None
            return self._read(number, pending)
        except _Dropped as reason:
            return Reply(pending.ticket, code=reason.code, reason=str(reason))

    def _pull_objects(self, pending: _Pending) -> bool:
        """Pull the missing objects of a reply; return True if it is complete."""
        most = OTHER_OBJECTS + -(-pending.limit // PIECE)
        if len(pending.missing) + len(pending.contents) > most:
            raise _Dropped(reason=f"A reply of {len(pending.missing)} parts is larger than expected.")
        while pending.missing:
            request = self._flower.PullObjectRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, object_id=pending.missing[-1]
            )
            found = self._grid._runtime_client.PullObject(request)
            if not found.object_found:
                raise _Dropped("offline")  # The site was cut off while it sent the reply.
            if not found.object_available:
                return False
            pending.contents[pending.missing.pop()] = found.object_content
            if sum(map(len, pending.contents.values())) > pending.limit + OVERHEAD:
                raise _Dropped(reason=f"A reply is larger than the {pending.limit:,} bytes that were expected.")
        return True

    def _read(self, number: str, pending: _Pending) -> Reply:
        try:
            reply = self._flower.inflate_object_from_contents(number, pending.contents)
            if reply.has_error():
                raise _Dropped("offline" if reply.error.code in LOST_CODES else "failed")
            return Reply(pending.ticket, reply.content)
        except _Dropped:
            raise
        except Exception as reason:  # Flower may fail in any way on objects of a hostile site.
            raise _Dropped(reason=f"A reply cannot be read: {reason!r}") from reason

    def _delete(self, number: str) -> None:
        """Let the SuperLink delete a reply."""
        request = self._flower.ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=number
        )
        self._grid._runtime_client.ConfirmMessageReceived(request)
