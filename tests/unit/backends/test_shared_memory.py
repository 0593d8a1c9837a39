"""What two processes hand each other through memory that they share."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from atoll.backends import shared_memory
from atoll.backends.shared_memory import SharedMemoryPipe, TensorRef, shared_memory_pipe
from atoll.methods.fedavg import Update


class Parcel(NamedTuple):
    name: str
    first: Any
    second: Any = None


ROOM = 1000  # bytes


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SharedMemoryPipe, SharedMemoryPipe]]:
    """Both in this process."""
    monkeypatch.setattr(shared_memory, "SIZE", ROOM)
    here, there = shared_memory_pipe()
    yield here, there
    here.close()
    there.close()


def numbers(count: int) -> Tensor:
    return torch.arange(float(count))


def test_tensors_are_sent_by_shared_memory_and_everything_else_by_pipe(
    ends: tuple[SharedMemoryPipe, SharedMemoryPipe],
) -> None:
    here, there = ends
    here.send(Parcel("a", {"w": numbers(6).view(2, 3)}, 7))
    assert there.pipe.recv() == Parcel("a", {"w": TensorRef(torch.float32, (2, 3), slice(0, 24))}, 7)


@pytest.mark.parametrize("room", [ROOM, 0])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5), torch.zeros(0, 3), torch.tensor([True, False]), numbers(6).view(2, 3).T,
        numbers(4).bfloat16(), torch.tensor([2**60, -1]), numbers(5)[1:4], numbers(3).requires_grad_(),
    ],
    ids=["scalar", "empty", "flags", "transposed", "half", "whole", "slice", "leaf"],
)  # fmt: skip
def test_tensor_is_received_unchanged_with_and_without_room(
    tensor: Tensor, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no room for it."""
    monkeypatch.setattr(shared_memory, "SIZE", room or 1)
    here, there = shared_memory_pipe()
    here.send(Parcel("a", tensor))
    received = there.receive().first
    assert (received.dtype, received.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(received, tensor)
    assert received.is_contiguous()
    assert not received.requires_grad


def test_payloads_and_other_values_are_received_unchanged(
    ends: tuple[SharedMemoryPipe, SharedMemoryPipe],
) -> None:
    here, there = ends
    here.send(Parcel("a", Update({"w": numbers(3)}, torch.tensor(2.0), {}), (None, "text", [1.5])))
    received = there.receive()
    assert type(received) is Parcel
    assert type(received.first) is Update
    assert torch.equal(received.first.params["w"], numbers(3))
    assert received.first.n == 2
    assert received.second == (None, "text", [1.5])
    here.send(None)
    assert there.receive() is None


def test_unanswered_messages_use_consecutive_memory(
    ends: tuple[SharedMemoryPipe, SharedMemoryPipe],
) -> None:
    """Both are sent before either is read; after an answer there is room from the start again."""
    here, there = ends
    here.send(Parcel("a", numbers(100)))
    here.send(Parcel("b", -numbers(100)))
    first, second = there.receive(), there.receive()
    assert torch.equal(first.first, -second.first)
    assert torch.equal(first.first, numbers(100))
    there.send(Parcel("c", numbers(249)))
    here.receive()
    here.send(Parcel("d", numbers(1)))
    assert there.pipe.recv().first.where == slice(0, 4)


def test_tensor_larger_than_the_memory_is_sent_by_pipe(ends: tuple[SharedMemoryPipe, SharedMemoryPipe]) -> None:
    here, there = ends
    here.send(Parcel("a", numbers(200), numbers(100)))
    there_is, there_is_not = there.pipe.recv()[1:]
    assert there_is.where == slice(0, 800)
    assert there_is_not.where == numbers(100).numpy().tobytes()


def test_received_tensor_is_not_changed_by_later_messages(ends: tuple[SharedMemoryPipe, SharedMemoryPipe]) -> None:
    here, there = ends
    here.send(Parcel("a", numbers(10)))
    received = there.receive()
    there.send(Parcel("b", -numbers(10)))
    assert torch.equal(received.first, numbers(10))
