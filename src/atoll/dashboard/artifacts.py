"""Summarise the audit log, checkpoints, exported models and site events of a run directory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..inference.export import MANIFEST
from ..storage import audit_log
from ..storage.audit_log import AuditError
from ..storage.run_reader import Run, value
from ..storage.tolerant_reader import LARGEST, checkpoints
from ..utils.files import read_ordinary
from ..utils.parsing import from_json

LISTED = 500  # latest records and events that are shown
TAIL = 2**18  # bytes at the end of a log that are read
MOST_EXPORTS = 300


def contents(run: Run) -> dict[str, object]:
    """Return the audit log, checkpoints, exported models and events of a run."""
    return {
        "audit": audit(run),
        "checkpoints": [_checkpoint(folder) for folder in reversed(checkpoints(run.path))],
        "exports": list(_exports(run.path)),
        "events": _events(run.path),
    }


# -- audit log -------------------------------------------------------------------------------------------------------


def audit(run: Run) -> dict[str, object] | None:
    """Return the latest uploads and whether the chain of hashes holds; None if the run has no log."""
    path = run.path / audit_log.NAME
    try:
        latest = list(_records(_lines(path)))
    except FileNotFoundError:
        return None
    except OSError as reason:
        return {"verdict": f"It cannot be read: {reason.strerror}.", "sound": False, "latest": []}
    sound, verdict = _verdict(run, path)
    return {"verdict": verdict, "sound": sound, "latest": latest[::-1]}


def _verdict(run: Run, path: Path) -> tuple[bool, str]:
    """Return whether the chain of hashes is intact, and a sentence about it."""
    # The last line may be incomplete, and checking the whole log in every round would take long.
    if run.status == "running":
        return True, "The log is checked when the run has ended."
    stored = run.summary.get("audit")
    end = (stored.get("records"), stored.get("head")) if isinstance(stored, Mapping) else (None, None)
    try:
        found = audit_log.verify(path, *end)
    except AuditError as reason:
        return False, str(reason)
    open_end = (
        "" if end[0] is not None else " The run did not finish, so missing records at the end cannot be detected."
    )
    return True, f"{found.records} records, each follows the one before it.{open_end}"


def _lines(path: Path) -> list[bytes]:
    """Return the last complete lines of a log."""
    return read_ordinary(path, TAIL, end=True).splitlines()[-LISTED:]


def _records(lines: list[bytes]) -> Iterator[dict[str, object]]:
    for line in lines:
        found = _object(line)
        if found is not None:
            reason = f": {found.get('field')} {found.get('reason')}" if found.get("field") else ""
            yield {
                "round": found.get("round"),
                "exchange": found.get("exchange"),
                "client": str(found.get("client", "")),
                "bytes": value(found, "bytes"),
                "sha256": str(found.get("sha256", "")),
                "verdict": f"{found.get('verdict', '')}{reason}",
            }


def _object(line: bytes) -> dict[str, object] | None:
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# -- stored files -----------------------------------------------------------------------------------------------------


def _checkpoint(folder: Path) -> dict[str, object]:
    manifest = _manifest(folder / "manifest.json")
    sums = manifest.get("files")
    files = [
        {"name": str(name), "sha256": str(digest), "size": _size(folder / Path(str(name)).name)}
        for name, digest in (sums.items() if isinstance(sums, dict) else ())
    ]
    return {"name": folder.name, "round": manifest.get("round"), "files": files, "problem": manifest.get("problem")}


def _exports(path: Path) -> Iterator[dict[str, object]]:
    """Yield the models that `atoll export` wrote."""
    folder = path / "export"
    found = sorted(folder.glob(f"*/*/{MANIFEST}")) if folder.is_dir() and not folder.is_symlink() else []
    for file in found[:MOST_EXPORTS]:
        manifest = _manifest(file)
        yield {
            "folder": file.parent.relative_to(path).as_posix(),
            "client": str(manifest.get("client", "")),
            "form": str(manifest.get("form", "")),
            "architecture": str(manifest.get("architecture", "")),
            "round": manifest.get("round"),
            "sha256": str(manifest.get("sha256", "")),
            "gap": value(manifest, "checked.largest_gap"),
            "size": _size(file.parent / Path(str(manifest.get("file", ""))).name),
            "problem": manifest.get("problem"),
            "text": json.dumps(manifest, indent=1, ensure_ascii=False),
        }


def _manifest(file: Path) -> dict[str, object]:
    try:
        return _object(read_ordinary(file, LARGEST)) or {"problem": f"{file.name} is damaged."}
    except OSError as reason:
        return {"problem": f"{file.name} cannot be read: {reason.strerror}."}


def _size(file: Path) -> int | None:
    try:
        return file.lstat().st_size
    except (OSError, ValueError):
        return None


def _events(path: Path) -> list[dict[str, object]]:
    """Return the events of a deployed run, the latest first."""
    try:
        lines = _lines(path / "events.jsonl")
    except OSError:
        return []
    found = [event for event in map(_object, lines) if event]
    return [
        {"time": value(e, "time"), "event": str(e.get("event", "")), "text": str(e.get("text", ""))}
        for e in reversed(found)
    ]
