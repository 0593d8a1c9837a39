"""Create, lock and write a run directory."""

import errno
import fcntl
import io
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from weakref import WeakSet

import pyarrow as pa
import pyarrow.parquet as pq

from ..config import Config, from_dict, read_yaml
from ..errors import AtollError
from ..privacy.budget import JOURNAL
from ..utils.files import read_ordinary, sync_folder, to_json, write, write_whole

_FOLDERS = ("checkpoints", "objects", "states", "per_client", "models", "tensorboard")
_FILES = (
    "metrics.jsonl",
    "summary.json",
    "clients.parquet",
    "holdings.json",
    "environment.json",
    "report.html",
    "audit.jsonl",
    JOURNAL,
)
CONFIG = "config.yaml"  # the file that makes a directory a run
_PATIENCE = 0.5  # seconds for a process that has just taken the lock to write its number


class InUse(AtollError):
    """Raised if another process is using the run directory."""


class RunDir:
    """A run directory, open in one process at a time. The lock is released when the process ends, however it ends.

    The directory itself is locked, because a lock file can be removed. The file ``.lock`` names the holder, and is
    locked too for file systems that lock files alone.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock: IO[bytes] | None = None
        self._folder: int | None = None  # descriptor of the directory

    def __enter__(self) -> "RunDir":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_links()
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            self._lock = open(
                os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0
            )
        except (OSError, ValueError) as reason:  # ValueError: the text is no valid path.
            why = reason.strerror if isinstance(reason, OSError) else reason
            raise AtollError(f"Cannot write to the run directory {str(self.path)!r}: {why}.") from reason
        if not (_lock_folder(self._folder) and _lock_file(self._lock)):
            holder = _holder(self._lock)
            self.let_go()
            raise InUse(
                f"The run directory {str(self.path)!r} is in use by another run{holder}. "
                "Wait for it, or choose another --out."
            ) from None
        try:
            self._sign()
        except BaseException:  # such as Ctrl-C: nobody else would release the lock before the process ends
            self.let_go()
            raise
        _held.add(self)
        return self

    def _sign(self) -> None:
        """Write the holder of the lock into the lock file; the lock holds even if that fails."""
        assert self._lock is not None
        with suppress(OSError):
            os.ftruncate(self._lock.fileno(), 0)
            os.write(self._lock.fileno(), str(os.getpid()).encode())

    def _check_links(self) -> None:
        """Refuse links inside the directory, so that nothing is written elsewhere; the directory itself may be one."""
        for name in (*_FOLDERS, *_FILES, ".lock", CONFIG):
            if (self.path / name).is_symlink():
                raise AtollError(
                    f"{str(self.path / name)!r} is a symbolic link, and a run writes only inside its own directory. "
                    "Remove the link, or choose another --out."
                )

    def __exit__(self, *_: object) -> None:
        _held.discard(self)
        self.let_go()

    def let_go(self) -> None:
        """Release the lock."""
        assert self._lock is not None
        assert self._folder is not None
        self._lock.close()
        os.close(self._folder)

    # -- before a run -------------------------------------------------------------------------------------------------

    def start(self, config: Config, resume: bool, force: bool) -> None:
        """Prepare the directory for a run; keep an existing run unless it is resumed or replaced by request."""
        if resume and force:
            raise AtollError("--resume continues a run and --force replaces it. Give one of them.")
        _check_no_group(self.path, force)
        if not (resume or force):
            check_free(self.path)
        elif resume and holds_run(self.path):
            self._check_same(config)
        elif holds_run(self.path):
            self._clear()

    def _check_same(self, config: Config) -> None:
        stored, asked = self.config().identity(), config.identity()
        differ = sorted(name for name in asked if asked[name] != stored.get(name))
        if differ:
            changes = "; ".join(f"{name}: {stored.get(name)!r} before, {asked[name]!r} now" for name in differ)
            raise AtollError(
                f"Cannot resume {str(self.path)!r} with another configuration ({changes}). Resume it as it was, or "
                "choose another --out."
            )

    def _clear(self) -> None:
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _FILES:
            self.remove(name)
        for name in ("deployment.json", "events.jsonl"):
            self.remove(name)

    def config(self) -> Config:
        """Read the configuration of the run."""
        path = self.path / CONFIG
        return from_dict(read_yaml(path), str(path))

    # -- while it runs ------------------------------------------------------------------------------------------------

    def write_config(self, config: Config, notes: Iterable[str] = ()) -> None:
        """Write config.yaml, with notes on the data as comments."""
        comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
        write_whole(self.path / CONFIG, (comments + config.to_yaml()).encode())

    def write_metrics(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Replace metrics.jsonl."""
        write_whole(self.path / "metrics.jsonl", "".join(to_json(line) + "\n" for line in lines).encode())

    def append_metrics(self, line: Mapping[str, object]) -> None:
        """Add a line to metrics.jsonl."""
        write(self.path / "metrics.jsonl", (to_json(line) + "\n").encode(), os.O_APPEND)

    def remove(self, name: str) -> None:
        """Delete a file of the run, if it exists."""
        (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, value: object, indent: int | None = 1) -> None:
        """Write a file of JSON; without ``indent`` on one line, which is ten times as fast for thousands of clients."""
        write_whole(self.path / name, (to_json(value, indent) + "\n").encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file."""
        write_whole(self.path / name, data)

    def sync(self) -> None:
        """Flush the directory to disk."""
        self.check_place()
        sync_folder(self.path)

    def check_place(self) -> None:
        """Raise AtollError if the directory was moved or replaced, so that its lock protects other files."""
        if self._folder is None:  # The directory was not locked.
            return
        if not self.path.exists() or not os.path.samestat(self.path.stat(), os.fstat(self._folder)):
            raise AtollError(
                f"The run directory {str(self.path)!r} was moved or replaced while the run was writing to it. "
                "Move it back and continue with --resume, or start again with another --out."
            )


_held: WeakSet[RunDir] = WeakSet()


def _let_go_of_all() -> None:
    """Close inherited locks in a forked worker, so that a lock ends with the process that took it."""
    for run_dir in list(_held):
        run_dir.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


def _lock_folder(folder: int) -> bool:
    """Lock a directory. Return False if another process holds it; some network file systems lock files alone."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        return reason.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _lock_file(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(lock: IO[bytes]) -> str:
    """Return the holder of a lock for a message; the entry of a process that is gone is ignored."""
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        signed = os.pread(lock.fileno(), 20, 0)
        if signed.isdigit() and _lives(int(signed)):
            return f" (process {int(signed)})"
        time.sleep(0.01)
    return ""


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)  # Signal 0 only checks that the process exists.
    except ProcessLookupError:
        return False
    except PermissionError:  # The process belongs to another account.
        pass
    return True


def holder(path: Path) -> int | None:
    """Return the process that uses a run directory, without taking the lock, which a starting run may need."""
    try:
        signed, inode = read_ordinary(path / ".lock", 20), (path / ".lock").stat().st_ino
        process = int(signed) if signed.isdigit() else None
        return process if process and _lives(process) and _locks(process, inode) else None
    except OSError:
        return None


def _locks(process: int, inode: int) -> bool:
    """Return True if ``process`` still holds the lock, guarding against reused ids where the system allows."""
    try:
        known = Path("/proc/locks").read_text().split("\n")
    except OSError:  # not Linux
        return True
    held = (line.split() for line in known)
    return any(str(process) in words and any(word.endswith(f":{inode}") for word in words) for words in held)


def check_free(path: Path) -> None:
    """Raise AtollError if the directory holds a run and the user asked neither to resume nor to replace it."""
    if holds_run(path):
        raise AtollError(
            f"{str(path)!r} already holds a run. "
            "Add --resume to continue it, --force to replace it, or choose another --out."
        )


def _check_no_group(path: Path, force: bool) -> None:
    """Raise AtollError if the directory belongs to a comparison, whose report a run would replace."""
    if inside := runs_inside(path):
        raise AtollError(
            f"{str(path)!r} holds the runs of another command ({', '.join(run.name for run in inside[:3])}"
            f"{', ...' if len(inside) > 3 else ''}), whose report a single run would replace. Choose another --out."
        )
    if (path / "report.html").exists() and not (force or holds_run(path)):
        raise AtollError(
            f"{str(path / 'report.html')!r} is not the report of a run. Add --force to replace it, or choose another "
            "--out."
        )


def holds_run(path: Path) -> bool:
    """Return True if the directory itself is that of a run."""
    return (path / CONFIG).exists()


def runs_inside(path: Path) -> list[Path]:
    """Return the directories of runs directly below ``path``."""
    return sorted(found.parent for found in path.glob(f"*/{CONFIG}"))


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    # A dictionary of scores saves no space, and making it takes half of the time.
    repeated = [column.name for column in table.schema if not pa.types.is_floating(column.type)]
    pq.write_table(table, sink, use_dictionary=repeated)
    return sink.getvalue()


def from_parquet(data: bytes) -> pa.Table:
    """Return the table of a Parquet file; an empty one for no bytes."""
    return pq.read_table(io.BytesIO(data)) if data else pa.table({})
