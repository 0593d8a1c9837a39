"""Save and load checkpoints: one directory each, with a manifest of SHA-256 sums, renamed into place when complete.

Client states are content-addressed objects shared by all checkpoints of a run, so only what changed is written.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from ..clients.model_store import objects_of, owned_objects_of
from ..clients.score_table import decode_columns, encode_columns
from ..core.contract import Contract
from ..core.group_scores import Columns
from ..core.payloads import Payload
from ..core.serialization import OWN, WireError, decode, encode
from ..errors import AtollError
from ..typing import ClientId
from ..utils.files import make_folder, sync_files, sync_folder, to_json, write
from ..utils.parsing import Json
from .object_store import ObjectStore, check_digest, shorten

KEEP = 2
_MANIFEST = "manifest.json"
_PARTS = (
    "server.safetensors",
    "progress.json",
    "states.json",
    "per_client.json",
    "servers.json",
    "models.json",
    "clients.parquet",
    "scores.safetensors",
)


@dataclass
class Snapshot:
    """Everything that a resumed run needs."""

    round: int  # rounds completed
    server: Any  # the server's state, of a class of the method
    states: dict[ClientId, str]  # the object that holds each client's state
    progress: Json  # totals, all lines of metrics, and entries of other parts of the run
    rows: bytes = field(repr=False, default=b"")  # the per-client table so far
    # the object that holds the server's state of each client
    per_client_states: dict[ClientId, str] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)  # the objects that hold further states of the server
    models: Json = field(default_factory=dict)  # the objects that hold the measured models
    scores: Mapping[str, Columns] = field(default_factory=dict)  # the latest scores of clients, by name of a table


class Checkpoints:
    """The checkpoints of one run.

    Args:
        run_dir: directory of the run.
        types: payload classes of the method, by which states are decoded.
        identity: options that decide the numbers of the run. A checkpoint of a run with other options is not loaded.
    """

    def __init__(self, run_dir: Path, types: Contract, identity: Mapping[str, object] | None = None):
        self.run_dir = run_dir
        self._folder = run_dir / "checkpoints"
        self._objects = ObjectStore(run_dir / "objects")
        self._types = types
        self._needed: dict[str, set[str]] = {}  # objects of checkpoints, by folder, as far as this process knows them
        self._config = sha256(to_json(dict(sorted((identity or {}).items()))).encode()).hexdigest()

    def put_state(self, state: Payload) -> str:
        """Store a state once, under the digest of its bytes, and return that name."""
        return self._objects.put(state)

    def get_state(self, name: str) -> Payload:
        """Return a stored state of a client; raise WireError if it is damaged."""
        return self.get(self._types.state, name)

    def get_per_client(self, name: str) -> Payload:
        """Return a stored state of the server for one client; raise WireError if it is damaged."""
        return self.get(self._types.per_client, name)

    def get_server(self, name: str) -> Payload:
        """Return a further state of the server; raise WireError if it is damaged."""
        return self.get(self._types.server, name)

    def get(self, kind: type[Payload], name: str) -> Payload:
        """Return a stored object as a payload of a class; raise WireError if it is damaged."""
        return decode(kind, self._objects.read(name), OWN)

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, then delete the oldest ones and later ones that were skipped as damaged."""
        make_folder(self._folder)
        self._clear_drafts()
        fresh, final = self._folder / f"new-{snapshot.round:06d}", self._folder / _name(snapshot.round)
        try:
            self._write(snapshot, fresh)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)  # A partial checkpoint would only take space on a full disk.
            raise
        shutil.rmtree(final, ignore_errors=True)
        fresh.rename(final)
        named = (snapshot.states, snapshot.per_client_states, snapshot.servers)
        self._needed[final.name] = {name for names in named for name in names.values()} | objects_of(snapshot.models)
        sync_folder(self._folder)
        self._keep_up_to(final)

    def tidy(self, done: int) -> None:
        """Delete old checkpoints, as :meth:`save` does at its end; ``done`` is the latest round."""
        self._clear_drafts()
        self._keep_up_to(self._folder / _name(done))

    def _write(self, snapshot: Snapshot, folder: Path) -> None:
        contents = (
            encode(snapshot.server),
            to_json({"round": snapshot.round, **snapshot.progress}).encode(),
            to_json(snapshot.states).encode(),
            to_json(snapshot.per_client_states).encode(),
            to_json(snapshot.servers).encode(),
            to_json(snapshot.models).encode(),
            snapshot.rows,
            encode_columns(snapshot.scores),
        )
        sums = {name: sha256(data).hexdigest() for name, data in zip(_PARTS, contents, strict=True)}
        manifest = to_json({"round": snapshot.round, "config": self._config, "files": sums}, indent=1).encode()
        folder.mkdir()
        for name, data in zip((*_PARTS, _MANIFEST), (*contents, manifest), strict=True):
            write(folder / name, data, os.O_EXCL)
        sync_files(chain(self._objects.unsynced(), folder.iterdir(), [folder]), folder)
        self._objects.mark_synced()

    def load(self, warn: Callable[[str], None]) -> Snapshot | None:
        """Return the latest intact checkpoint, skipping damaged ones with a warning; None if there are none."""
        found, errors = self._all(), []
        self._objects.compare_again()
        for folder in reversed(found):
            try:
                return self._read(folder)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, AtollError) as reason:
                errors.append(f"Checkpoint {folder.name} is damaged ({reason})")
                warn(f"{errors[-1]}; trying the one before it.")
        if found:
            raise AtollError(
                f"No checkpoint in {str(self._folder)!r} can be read. {'. '.join(errors)}. Nothing was changed. "
                "Restore the files from a copy, or start again with --force, which replaces the run."
            )
        return None

    def held(self) -> set[tuple[ClientId, str]]:
        """Return the names of stored states and models of clients over all checkpoints that a run may resume from."""
        found = {of for folder in self._all() for of in _names(folder, "states").items()}
        return found | {of for folder in self._all() for of in owned_objects_of(_names(folder, "models"))}

    def _read(self, folder: Path) -> Snapshot:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if folder.name != _name(manifest["round"]):
            raise WireError(f"{_MANIFEST} is that of round {manifest['round']}")
        if manifest["config"] != self._config:
            raise WireError(f"it belongs to another configuration, {shorten(manifest['config'])}")
        parts = {name: (folder / name).read_bytes() for name in _PARTS}
        for name, data in parts.items():
            check_digest(name, data, manifest["files"][name])
        progress, states, per_client_states, servers, models = (
            json.loads(parts[f"{name}.json"]) for name in ("progress", "states", "per_client", "servers", "models")
        )
        for get, names in (
            (self.get_state, states),
            (self.get_per_client, per_client_states),
            (self.get_server, servers),
        ):
            for name in names.values():
                get(name)  # Finds damaged states now, not rounds later.
        for name in objects_of(models):
            self._objects.read(name)
        server = decode(self._types.server, parts["server.safetensors"], OWN)
        return Snapshot(
            progress.pop("round"),
            server,
            states,
            progress,
            parts["clients.parquet"],
            per_client_states,
            servers,
            models,
            decode_columns(parts["scores.safetensors"]),
        )

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("round-*"), key=lambda folder: (len(folder.name), folder.name))

    def _clear_drafts(self) -> None:
        """Delete files of a process that ended while it was writing."""
        for draft in self._folder.glob("new-*"):
            shutil.rmtree(draft)

    def _keep_up_to(self, latest: Path) -> None:
        found = self._all()
        kept = found[: found.index(latest) + 1][-KEEP:]
        for folder in found:
            if folder not in kept:
                shutil.rmtree(folder)
        self._needed = {folder.name: self._needed.get(folder.name) or _states(folder) for folder in kept}
        self._objects.keep(set().union(*self._needed.values()))


def _name(done: int) -> str:
    return f"round-{done:06d}"


def _states(folder: Path) -> set[str]:
    """Return the stored objects that a checkpoint needs; none if it is damaged, because it cannot be loaded."""
    states = {name for part in ("states", "per_client", "servers") for name in _names(folder, part).values()}
    return states | objects_of(_names(folder, "models"))


def _names(folder: Path, part: str) -> Json:
    try:
        return dict(json.loads((folder / f"{part}.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
