"""How arithmetic uses the machine: one thread, memory that stays with the process, and which device."""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

# Parameters of glibc's mallopt: most mappings of their own, free memory kept at the top, memory taken beyond a need.
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_USUAL = {_MMAP_MAX: 65_536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 0}


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are split by thread, so their number would show in the last bits of every result."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with the process until the end, when what is free goes back.

    A training step frees and takes the same tens of megabytes again; by default the kernel has to hand them out anew,
    page by page, at every step. Only glibc can be told; elsewhere nothing happens.
    """
    _tell_allocator(_KEEPING)
    try:
        yield
    finally:
        _tell_allocator(_USUAL)
        _libc_call("malloc_trim", 0)


def on_device(name: str) -> AbstractContextManager[Any]:
    """New tensors are made there. Nothing is set for the CPU: a mode for it would slow every call down."""
    return torch.device(name) if name == "cuda" else nullcontext()


def _tell_allocator(values: dict[int, int]) -> None:
    for parameter, value in values.items():
        _libc_call("mallopt", parameter, value)


def _libc_call(name: str, *values: int) -> None:
    """A function of the C library, if it has it."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return
    function(*values)
