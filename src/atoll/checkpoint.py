"""Checkpoints: one directory each, with a manifest of SHA-256 sums; whole, or not there.

Client states are content-addressed objects shared by all checkpoints of a run, so only what changed is written.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from .core import ClientId, Contract
from .errors import AtollError
from .files import sync_folder, to_json, write_whole
from .wire import WireError, decode, encode

KEEP = 2
_MANIFEST = "manifest.json"


@dataclass
class Snapshot:
    """All that a resumed run needs."""

    round: int  # rounds completed
    server: Any
    states: dict[ClientId, str]  # the object that holds each client's state
    progress: dict[str, Any]  # totals, latest scores, length of the metrics file: plain JSON values
    rows: bytes = field(repr=False, default=b"")  # the per-client table so far
    desks: dict[ClientId, str] = field(default_factory=dict)  # the object that holds what the server keeps of each


class Checkpoints:
    def __init__(self, run_dir: Path, types: Contract):
        self._folder, self._objects, self._types = run_dir / "checkpoints", run_dir / "objects", types

    def put_state(self, state: Any) -> str:
        """Store a state (or a desk) once; the name is the digest of its bytes."""
        data = encode(state)
        name = sha256(data).hexdigest()
        path = self._objects / name
        if not path.exists() or path.read_bytes() != data:
            self._objects.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        return name

    def get_state(self, name: str) -> Any:
        return self._get(self._types.state, name)

    def get_desk(self, name: str) -> Any:
        return self._get(self._types.desk, name)

    def _get(self, kind: type[Any], name: str) -> Any:
        data = (self._objects / name).read_bytes()
        if sha256(data).hexdigest() != name:
            raise WireError(f"object {name[:12]} is damaged")
        return decode(kind, data)

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint beside the others, then let go of the oldest, and of later ones that were passed over."""
        fresh = self._folder / f"new-{snapshot.round:06d}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        parts = {
            "server.safetensors": encode(snapshot.server),
            "progress.json": to_json({"round": snapshot.round, **snapshot.progress}).encode(),
            "states.json": to_json(snapshot.states).encode(),
            "desks.json": to_json(snapshot.desks).encode(),
            "clients.parquet": snapshot.rows,
        }
        for name, data in parts.items():
            write_whole(fresh / name, data)
        sums = {name: sha256(data).hexdigest() for name, data in parts.items()}
        write_whole(fresh / _MANIFEST, to_json(sums, indent=1).encode())
        for folder in (fresh, self._objects):
            if folder.exists():
                sync_folder(folder)
        final = self._folder / f"round-{snapshot.round:06d}"
        shutil.rmtree(final, ignore_errors=True)
        fresh.rename(final)
        sync_folder(self._folder)
        self._keep_up_to(final)

    def load(self, warn: Callable[[str], None]) -> Snapshot | None:
        """The latest good checkpoint; a damaged one is passed over with a warning. None if there never was one."""
        found = self._all()
        for folder in reversed(found):
            try:
                return self._read(folder)
            except (OSError, ValueError, KeyError, TypeError, AtollError) as reason:
                warn(f"Checkpoint {folder.name} is damaged ({reason}); trying the one before it.")
        if found:
            raise AtollError(
                f"No checkpoint in {str(self._folder)!r} can be read. Start again with --force, which replaces the run."
            )
        return None

    def held(self) -> set[tuple[ClientId, str]]:
        """Clients and the objects that hold their states, over all checkpoints that a run may go back to."""
        return {of for folder in self._all() for of in _names(folder, "states").items()}

    def _read(self, folder: Path) -> Snapshot:
        sums = json.loads((folder / _MANIFEST).read_text())
        parts = {name: (folder / name).read_bytes() for name in sums}
        for name, data in parts.items():
            if sha256(data).hexdigest() != sums[name]:
                raise WireError(f"{name} does not match its checksum")
        progress, states, desks = (json.loads(parts[f"{name}.json"]) for name in ("progress", "states", "desks"))
        for get, names in ((self.get_state, states), (self.get_desk, desks)):
            for name in names.values():
                get(name)  # a damaged one must show now, not rounds later
        server = decode(self._types.server, parts["server.safetensors"])
        return Snapshot(progress.pop("round"), server, states, progress, parts["clients.parquet"], desks)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("round-*"), key=lambda folder: (len(folder.name), folder.name))

    def _keep_up_to(self, latest: Path) -> None:
        found = self._all()
        kept = found[: found.index(latest) + 1][-KEEP:]
        for folder in found:
            if folder not in kept:
                shutil.rmtree(folder)
        used = {name for folder in kept for name in _states(folder)}
        for path in self._objects.glob("*"):
            if path.name not in used:
                path.unlink()


def _states(folder: Path) -> set[str]:
    """The objects a checkpoint needs; none if it is damaged, for then it cannot be loaded."""
    return {name for part in ("states", "desks") for name in _names(folder, part).values()}


def _names(folder: Path, part: str) -> dict[ClientId, str]:
    try:
        return dict(json.loads((folder / f"{part}.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
