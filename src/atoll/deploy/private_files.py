"""Write files and folders that other accounts of a machine cannot read, and check that they stay so."""

import os
import stat
from pathlib import Path

from ..errors import AtollError


def private_folder(path: Path) -> None:
    """Create a folder that only this account can read."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically. Other accounts can read neither the file nor its temporary copy."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)


def check_private(path: Path) -> None:
    """Raise AtollError for a file that other accounts can read or change."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        right = "700" if path.is_dir() else "600"
        raise AtollError(
            f"Other accounts can read or change {str(path)!r} (mode {mode:o}). Close it first: chmod {right} {path}"
        )
