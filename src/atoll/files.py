"""Files that are either whole or not there, and JSON without NaN."""

import json
import math
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, data: bytes) -> None:
    """Write under a temporary name, sync, rename: a reader never sees half a file."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
