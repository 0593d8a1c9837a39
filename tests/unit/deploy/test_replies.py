"""Replies of sites as the server pulls them: within their limits, signed, and none delays another."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message, RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from atoll.deploy import pki
from atoll.deploy.flower_adapter.replies import Replies
from atoll.deploy.transport.base import Arrival, Request
from atoll.deploy.transport.flower import FlowerTransport, wrapped
from atoll.deploy.transport.signatures import ReplySigner

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of Flower can be made within a task only."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Link:
    """A stand-in for the SuperLink and its grid: holds objects of replies, and counts what is pulled."""

    node = None
    run = SimpleNamespace(run_id=1)

    def __init__(self) -> None:
        self._runtime_client = self
        self.messages: list[tuple[str, str, Any]] = []
        self.objects: dict[str, bytes | None] = {}
        self.listed: set[str] = set()
        self.pulled = 0
        self.deleted: list[str] = []
        self.nodes: list[Any] = []

    # -- what sites do ------------------------------------------------------------------------------------------------

    def reply(self, ticket: str, content: Any = None, error: Error | None = None) -> None:
        made: Any = Message(content, dst_node_id=1, message_type="train") if error is None else None
        if error is not None:
            made = Message(error, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
        number = made.object_id
        self.objects |= {key: part.deflate() for key, part in get_all_nested_objects(made).items()}
        self.messages.append((ticket, number, get_object_tree(made)))

    def parts(self, ticket: str, number: int, size: int, last: bytes | None = b"") -> None:
        """A reply of some parts, which need not make sense."""
        names = [f"{ticket}-{at}" for at in range(number)]
        self.objects |= dict.fromkeys(names, bytes(size))
        if last is None:
            self.objects[names[0]] = None
        children = [ObjectTree(object_id=name) for name in names]
        self.objects[ticket] = b"head"
        self.messages.append((ticket, ticket, ObjectTree(object_id=ticket, children=children)))

    # -- what the server calls ----------------------------------------------------------------------------------------

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        assert not self.listed & set(request.message_ids), "Flower gives errors for replies that it has listed"
        listed = [m for m in self.messages if m[0] in request.message_ids]
        self.listed |= {ticket for ticket, *_ in listed}
        self.messages = [m for m in self.messages if m not in listed]
        metadata = [Metadata(message_id=number, reply_to_message_id=ticket) for ticket, number, _ in listed]
        return PullAppMessagesResponse(
            messages_list=[MessageProto(metadata=m) for m in metadata],
            message_object_trees=[tree for *_, tree in listed],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:
        if request.object_id not in self.objects:
            return PullObjectResponse(object_found=False)
        content = self.objects[request.object_id]
        if content is None:
            return PullObjectResponse(object_found=True, object_available=False)
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.deleted.append(request.message_object_id)

    # -- the grid -----------------------------------------------------------------------------------------------------

    def get_nodes(self) -> list[Any]:
        return self.nodes

    def push_messages(self, messages: list[Any]) -> list[str]:
        return [f"to {message.metadata.dst_node_id}" for message in messages]


def test_reply_of_too_many_parts_is_deleted_before_anything_is_pulled() -> None:
    link = Link()
    link.parts("a", 80, 5 * MEGABYTE)  # 400 MB

    (reply,) = Replies(link).pull({"a": MEGABYTE})

    assert (reply.code, link.pulled, link.deleted) == (None, 0, ["a"])
    assert "larger than expected" in reply.reason


def test_reply_of_few_large_parts_stops_at_its_limit() -> None:
    """At most one part beyond the limit is in memory: a part has at most 8 MB, by the gate."""
    link = Link()
    link.parts("a", 10, 8 * MEGABYTE)
    tracemalloc.start()

    (reply,) = Replies(link).pull({"a": MEGABYTE})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert "larger than" in reply.reason
    assert link.pulled < 9 * MEGABYTE
    assert peak < 50 * MEGABYTE


def test_reply_whose_parts_are_slow_delays_no_other() -> None:
    link, frame = Link(), b"a frame"
    link.parts("slow", 3, 10, last=None)
    link.reply("fast", wrapped(frame))
    replies = Replies(link)

    first = replies.pull({"slow": MEGABYTE, "fast": MEGABYTE})
    again = replies.pull({"slow": MEGABYTE})

    assert [reply.ticket for reply in first] == ["fast"]
    assert again == []
    assert replies.arriving
    del link.objects["slow-0"]  # The SuperLink gave the reply up.
    assert [(reply.ticket, reply.code) for reply in replies.pull({"slow": MEGABYTE})] == [("slow", "offline")]
    assert not replies.arriving


def test_reply_that_flower_cannot_read_fails_alone() -> None:
    link = Link()
    link.parts("a", 2, 10)

    (reply,) = Replies(link).pull({"a": MEGABYTE})

    assert "cannot be read" in reply.reason


@pytest.mark.parametrize(("number", "code"), [(5, "offline"), (2, "failed")])
def test_error_of_flower_gives_a_code(number: int, code: str) -> None:
    link = Link()
    link.reply("a", error=Error(code=number, reason="gone"))

    (reply,) = Replies(link).pull({"a": MEGABYTE})

    assert reply.code == code


class TestSignatures:
    """A site's own signature over request and reply: neither the gate nor the SuperLink can change a reply."""

    @staticmethod
    def receive(link: Link, key: str) -> Arrival:
        link.nodes = [SimpleNamespace(node_id=7, public_key=pki.spki(key.encode()))]
        transport = FlowerTransport(link, {"north": key})
        assert list(transport.present()) == ["north"]
        assert transport.send({"north": Request(b"request", 1000)}) == {"north": "to 7"}
        (arrival,) = transport.receive(0)
        return arrival

    def test_signed_reply_arrives(self) -> None:
        link, pair = Link(), pki.make_site()
        link.reply("to 7", wrapped(b"reply", ReplySigner(pair.private).sign("to 7", b"reply")))

        arrival = self.receive(link, pair.public.decode().strip())

        assert arrival == Arrival("to 7", b"reply")

    @pytest.mark.parametrize("forgery", ["none", "other reply", "other request", "other key", "nonsense"])
    def test_reply_with_another_signature_fails(self, forgery: str) -> None:
        link, pair = Link(), pki.make_site()
        own, other = ReplySigner(pair.private), ReplySigner(pki.make_site().private)
        signature = {
            "none": b"",
            "other reply": own.sign("to 7", b"another"),
            "other request": own.sign("to 8", b"reply"),
            "other key": other.sign("to 7", b"reply"),
            "nonsense": b"\x30\x00",
        }[forgery]
        link.reply("to 7", wrapped(b"reply", signature))

        arrival = self.receive(link, pair.public.decode().strip())

        assert (arrival.code, arrival.data) == (None, b"")
        assert "no valid signature" in arrival.reason


def test_sites_are_announced_to_the_gate_before_they_are_asked() -> None:
    link, told = Link(), list[Any]()
    pair = pki.make_site()
    key = pair.public.decode().strip()
    link.nodes = [SimpleNamespace(node_id=7, public_key=pki.spki(key.encode()))]
    transport = FlowerTransport(link, {"north": key}, told.append)
    transport.present()

    transport.send({"north": Request(b"request", 1000)})

    assert told == [{"north": 1000}]
