"""Settings of the process while a run computes: numbers, threads, memory allocator, device."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch

# Parameters of glibc's mallopt: number of separate mappings, free memory to keep, memory to take beyond a request.
_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_USUAL = {_MMAP_MAX: 65_536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 0}


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute inside the context as torch does in a fresh process, whatever the calling program has set.

    Restored afterwards: default type and device, precision of matrix products, autocast, inference mode, oneDNN.
    """
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    elsewhere = torch.get_default_device() != torch.device("cpu")
    with ExitStack() as settings:
        if elsewhere:  # Only then, because torch's device mode slows every call down.
            settings.enter_context(torch.device("cpu"))
        settings.callback(torch.set_default_dtype, dtype)
        settings.callback(torch.set_float32_matmul_precision, precision)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.enable_grad())
        settings.callback(_set_onednn, bool(torch.backends.mkldnn.enabled))
        _set_onednn(True)
        for device in ("cpu", "cuda"):
            settings.enter_context(torch.autocast(device, enabled=False))
        yield


def _set_onednn(enabled: bool) -> None:
    # Torch's own context manager sets further flags, one of which warns.
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the context.

    Torch splits sums by thread, so the number of threads would show in the last bits of every result.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory in the process inside the context, and return it to the system at the end.

    A training step frees and allocates the same tens of megabytes; by default the kernel maps them anew, page by page,
    at every step. This works with glibc; with other C libraries nothing changes.
    """
    _tell_allocator(_KEEPING)
    try:
        yield
    finally:
        _tell_allocator(_USUAL)
        _libc_call("malloc_trim", 0)


@contextmanager
def spared_objects() -> Iterator[None]:
    """Leave the objects that exist now out of garbage collection inside the context.

    Modules have made half a million objects, which every full collection would visit. What an earlier context of this
    process left behind is collected first, so that no old run stays in memory.
    """
    global _has_spared
    if gc.get_freeze_count():  # by the program that runs this one, or by a context around this one
        yield
        return
    if _has_spared:
        gc.collect()
    _has_spared = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_has_spared = False


def on_device(name: str) -> AbstractContextManager[object]:
    """Make new tensors on a device inside the context.

    Nothing is set for the CPU, because torch's device mode slows every call down.
    """
    return torch.device(name) if name == "cuda" else nullcontext()


def _tell_allocator(values: dict[int, int]) -> None:
    for parameter, value in values.items():
        _libc_call("mallopt", parameter, value)


def _libc_call(name: str, *values: int) -> None:
    """Call a function of the C library, if the library has it."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return
    function(*values)
