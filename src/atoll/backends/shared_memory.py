"""A pipe between two processes of one family that also share memory: tensors lie there, only their places are sent.

A pipe would copy what is large twice and in small portions, for which both ends must be awake at the same time. The
ends take turns. What was received is copied out at once; from then on its place is free, and the receiver, whose turn
it is now, writes from the start again. Until it is answered it may send several messages, one behind the other.

The pipe pickles what is around the tensors: both ends are this program, and nothing from elsewhere is unpickled.
"""

import mmap
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ..core.tree import map_tree

SIZE = 2**28  # bytes of address space: pages that nothing was written to take no memory


@dataclass(frozen=True)
class TensorRef:
    """What stands for a tensor in a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    where: slice | bytes  # in memory, or here if there was no room


class SharedMemoryPipe:
    """One end."""

    def __init__(self, pipe: Connection, memory: Tensor):
        self.pipe, self._memory = pipe, memory
        self._free = 0  # where nothing lies any more

    def send(self, message: Any) -> None:
        """Payloads, tuples, dictionaries, and what they hold."""
        self.pipe.send(map_tree(self._put, message))

    def receive(self) -> Any:
        message = self.pipe.recv()
        self._free = 0
        return map_tree(self._taken, message)

    def close(self) -> None:
        self.pipe.close()

    def _put(self, v: Any) -> Any:
        if not isinstance(v, Tensor):
            return v
        numbers = v.detach().contiguous().view(-1).view(torch.uint8)
        return TensorRef(v.dtype, tuple(v.shape), self._kept(numbers) or numbers.numpy().tobytes())

    def _kept(self, numbers: Tensor) -> slice | None:
        start, stop = self._free, self._free + len(numbers)
        if stop > len(self._memory):
            return None
        self._memory[start:stop].copy_(numbers)
        self._free = stop
        return slice(start, stop)

    def _taken(self, v: Any) -> Any:
        if not isinstance(v, TensorRef):
            return v
        numbers = self._memory[v.where].clone() if isinstance(v.where, slice) else _from_bytes(v.where)
        return numbers.view(v.dtype).view(v.shape)


def _from_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def shared_memory_pipe() -> tuple[SharedMemoryPipe, SharedMemoryPipe]:
    """Both ends: one for this process, one for a process that will be forked."""
    memory = torch.frombuffer(mmap.mmap(-1, SIZE), dtype=torch.uint8)
    here, there = get_context("fork").Pipe()
    return SharedMemoryPipe(here, memory), SharedMemoryPipe(there, memory)
