"""Send messages between a process and its fork, with tensors in shared memory.

A plain pipe copies large tensors twice and in small portions, for which both ends must run at the same time. The two
ends of this pipe take turns. A receiver copies tensors out of the shared memory at once, which frees the memory, and
then writes its own messages from the start. An end may send several messages, one behind the other, before the other
end answers.

The pipe pickles everything but tensors. Both ends are this program, so no data from elsewhere is unpickled.
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
    """Refer to a tensor in shared memory, in place of the tensor in a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    where: slice | bytes  # place in shared memory, or the bytes if the memory was full


class SharedMemoryPipe:
    """One end of a pipe with shared memory; see :func:`shared_memory_pipe`."""

    def __init__(self, pipe: Connection, memory: Tensor):
        self.pipe = pipe
        self._memory = memory
        self._free = 0  # start of the free memory

    def send(self, message: Any) -> None:
        """Send a message of payloads, tuples, lists and dictionaries."""
        self.pipe.send(map_tree(self._put, message))

    def receive(self) -> Any:
        """Wait for a message. Tensors in it are copies."""
        message = self.pipe.recv()
        self._free = 0
        return map_tree(self._take, message)

    def close(self) -> None:
        """Close this end of the pipe."""
        self.pipe.close()

    def _put(self, v: Any) -> Any:
        if not isinstance(v, Tensor):
            return v
        numbers = v.detach().contiguous().view(-1).view(torch.uint8)
        return TensorRef(v.dtype, tuple(v.shape), self._write(numbers) or numbers.numpy().tobytes())

    def _write(self, numbers: Tensor) -> slice | None:
        """Write bytes to the shared memory, and return their place; None if the memory is full."""
        start, stop = self._free, self._free + len(numbers)
        if stop > len(self._memory):
            return None
        self._memory[start:stop].copy_(numbers)
        self._free = stop
        return slice(start, stop)

    def _take(self, v: Any) -> Any:
        if not isinstance(v, TensorRef):
            return v
        numbers = self._memory[v.where].clone() if isinstance(v.where, slice) else _from_bytes(v.where)
        return numbers.view(v.dtype).view(v.shape)


def _from_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def shared_memory_pipe() -> tuple[SharedMemoryPipe, SharedMemoryPipe]:
    """Return both ends of a new pipe: one for this process, one for a process that will be forked."""
    memory = torch.frombuffer(mmap.mmap(-1, SIZE), dtype=torch.uint8)
    here, there = get_context("fork").Pipe()
    return SharedMemoryPipe(here, memory), SharedMemoryPipe(there, memory)
