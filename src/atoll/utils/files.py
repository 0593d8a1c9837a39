"""Files that are either whole or not there, and JSON without NaN."""

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: bytes) -> None:
    """Write under a temporary name, sync, rename: a reader never sees half a file."""
    fresh = path.with_name(path.name + ".new")
    try:
        write(fresh, data, os.O_TRUNC, sync=True)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # on a full disk half a file is only in the way
        raise


def write(path: Path, data: bytes, how: int, sync: bool = False) -> None:
    """Write to a file itself, never to what a symbolic link in its place points at; ``how`` truncates or appends."""
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
    """A file that anybody may have put there: no link, no pipe that never ends, at most so many bytes; or OSError.

    With ``end``, the last bytes of a larger file are read, and not none.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "It is not an ordinary file", str(path))
        if end:
            file.seek(max(0, found.st_size - most))
        elif found.st_size > most:
            raise OSError(errno.EFBIG, f"It has {found.st_size:,} bytes, and {most:,} are read at most", str(path))
        return file.read(most)


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """A folder that is there for good, unless it was there already."""
    if not path.exists():
        path.mkdir(parents=True)
        sync_folder(path.parent)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON in which an undefined number is null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
