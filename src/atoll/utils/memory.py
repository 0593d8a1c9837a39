"""Read how much memory this machine, or the container around this process, can still give."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the bytes that are available without swapping; None where the system does not say."""
    found = [free for free in (_of_machine(), _of_container()) if free is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_container() -> int | None:
    """Return what is left of the limit of a control group (version 2); None without a limit."""
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used))  # "max", which is no number, stands for no limit
    except (OSError, ValueError):
        return None
