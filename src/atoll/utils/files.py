"""Write files atomically, read untrusted files, and encode JSON without NaN."""

import ctypes
import errno
import json
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path

# The call of Linux that flushes a whole file system; other systems have none.
_SYNCFS = getattr(ctypes.CDLL(None), "syncfs", None)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new one, never a part of it."""
    fresh = path.with_name(path.name + ".new")
    try:
        write(fresh, data, os.O_TRUNC, sync=True)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # A partial file would only take space on a full disk.
        raise


def write(path: Path, data: bytes, how: int, sync: bool = False) -> None:
    """Write to a regular file, never through a symbolic link.

    Args:
        path: the file; it is created if it does not exist.
        data: the bytes to write.
        how: ``os.O_TRUNC`` to replace the content, ``os.O_APPEND`` to append.
        sync: wait until the bytes are on the disk.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def read_ordinary(path: Path, most: int, end: bool = False) -> bytes:
    """Read a file that an untrusted party may have placed.

    Args:
        path: the file.
        most: the largest number of bytes to read.
        end: read the last ``most`` bytes of a larger file instead of refusing it.

    Raises:
        OSError: if the path is a link, a pipe or another special file, or if the file is too large.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        if end:
            file.seek(max(0, found.st_size - most))
        elif found.st_size > most:
            raise OSError(errno.EFBIG, f"It has {found.st_size:,} bytes, and {most:,} are read at most", str(path))
        return file.read(most)


def sync_folder(path: Path) -> None:
    """Flush a folder to disk, so that renames in it survive a power cut; or the content of a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(files: Iterable[Path], folder: Path) -> None:
    """Flush files and folders to disk. One call for all of them takes a fraction of the time of one for each.

    Args:
        files: what to flush.
        folder: a folder on the same file system.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _SYNCFS is not None and _SYNCFS(handle) == 0:
            return
    finally:
        os.close(handle)
    for path in files:
        sync_folder(path)


def make_folder(path: Path) -> None:
    """Create a folder, with its parents, and flush the entry to disk."""
    if not path.exists():
        path.mkdir(parents=True)
        sync_folder(path.parent)


def to_json(value: object, indent: int | None = None) -> str:
    """Encode a value as JSON; NaN and infinity become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:  # there is a NaN or an infinity somewhere
        return json.dumps(without_nan(value), indent=indent, allow_nan=False)


def without_nan(value: object) -> object:
    """Return a value of JSON with null in place of NaN and infinity."""
    if isinstance(value, dict):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
