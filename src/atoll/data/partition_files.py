"""Store partitions of data sets: export and import them as JSON, and keep them in a cache."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np

from ..errors import AtollError
from ..utils.parsing import from_json
from .dataset import Array, Dataset
from .federated_dataset import PARTS, FederatedDataset, all_groups, fingerprint, short_hash, update_hash
from .readers.pickles import read_partition_pickle
from .split import ClientSplits, gaps

VERSION = 1  # raised when the same request gives other rows, or when the format of the files changes


def export(federation: FederatedDataset, path: Path) -> None:
    """Write the rows of every client to a JSON file, which the partition ``file:PATH`` reads."""
    head = _head(federation, fingerprint(federation.dataset))
    owned = [
        {"id": client} | {part: federation.part(part)[i].tolist() for part in PARTS}
        for i, client in enumerate(federation.clients)
    ]
    body = head | {"public": federation.public.tolist(), "clients": owned}
    with _writing(path.parent):
        _write(path, json.dumps(body).encode())


def read_partition(dataset: Dataset, content: str, path: Path, clients: int | None, public: int) -> FederatedDataset:
    """Read a partition file.

    Args:
        dataset: the data set that the partition was made for.
        content: its fingerprint.
        path: the file.
        clients: expected number of clients; None accepts any.
        public: expected number of public rows; 0 accepts any.
    """
    where = f"Partition 'file:{path}'"
    try:
        body = _read_body(path, dataset, content)
        ids = tuple(client["id"] for client in body["clients"])
        rows = {part: [client[part] for client in body["clients"]] for part in PARTS}
        federation = _build(dataset, content, body, ids, rows | {"public": [body["public"]]}, where)
    except OSError as error:
        raise AtollError(f"{where} cannot be read: {error.strerror}. Check the path.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise AtollError(
            f"{where} is not an exported partition ({type(error).__name__}: {error}). "
            "Make one with: atoll data show NAME --export FILE."
        ) from None
    for what, asked, given in (
        ("clients", clients or len(ids), len(ids)),
        ("public samples", public, len(federation.public)),
    ):
        if asked not in (given, 0):
            raise AtollError(f"{where} has {given} {what}, not {asked}. Ask for {given} or leave the number out.")
    return federation


def _read_body(path: Path, dataset: Dataset, content: str) -> Any:
    """Read a partition file. Pickles of FL-bench are converted; their clients without training rows are left out."""
    if path.suffix != ".pkl":
        return from_json(path.read_text(encoding="utf-8"))
    parts = read_partition_pickle(path)
    clients = [{"id": str(i), **rows} for i, rows in enumerate(parts) if rows["train"]]
    head = {"version": VERSION, "dataset": dataset.name, "fingerprint": content, "digest": "", "name": "", "recipe": ""}
    return head | {"notes": [], "public": [], "clients": clients}


def _build(
    dataset: Dataset,
    content: str,
    head: Mapping[str, Any],
    ids: tuple[str, ...],
    stored: Mapping[str, Sequence[object]],
    where: str,
) -> FederatedDataset:
    """Build a federated data set from stored rows after checking them; keep its stored name if they are unchanged."""
    if head["version"] != VERSION:
        raise AtollError(f"{where} has format {head['version']}, not {VERSION}. Export the partition again.")
    if head["fingerprint"] != content:
        raise AtollError(
            f"{where} was made for data set {head['dataset']!r} with content {head['fingerprint']}, but "
            f"{dataset.name!r} has content {content}. Load the data set it was made for."
        )
    if not ids or len(set(ids)) != len(ids) or not all(isinstance(client, str) and client for client in ids):
        raise AtollError(f"{where}: clients must have different ids, each a text, and there must be at least one.")
    lists: dict[tuple[str, str], object] = {
        (part, client): rows for part in PARTS for client, rows in zip(ids, stored[part], strict=True)
    }
    lists["public", "rows"] = stored["public"][0]
    sound = _checked_rows(lists, len(dataset.y_train) + len(dataset.y_test), where)
    train, val, test = (tuple(sound[part, client] for client in ids) for part in PARTS)
    public = sound["public", "rows"]
    notes = (*dataset.notes, *(str(note) for note in head["notes"]))
    same = FederatedDataset(dataset, ids, train, val, test, public, notes, str(head["name"]), str(head["recipe"]))
    if (digest := _digest(same)) == head["digest"]:
        return same
    recipe = f"{dataset.name.rpartition('/')[2]} ({content}), rows listed in a file ({digest})"
    found = gaps(ClientSplits(train, val, test), all_groups(dataset), len(dataset.groups), dataset.problem)
    return replace(same, notes=(*dataset.notes, *found), name=short_hash(VERSION, recipe), recipe=recipe)


def _checked_rows(lists: Mapping[tuple[str, str], object], size: int, where: str) -> dict[tuple[str, str], Array]:
    """Return the lists of rows as sorted arrays.

    Raises:
        AtollError: if a row does not exist or is listed twice, or if a client has no training rows.
    """
    taken: dict[int, str] = {}
    sound = {}
    for (part, client), values in lists.items():
        here = f"{part} of client {client!r}" if part != "public" else "public"
        numbers = np.asarray(values)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind != "i"):
            raise AtollError(f"{where}: {here} is not a list of whole numbers.")
        if part == "train" and not numbers.size:
            raise AtollError(f"{where}: client {client!r} has no training samples. Give it some or remove it.")
        for row in numbers.tolist():
            if not 0 <= row < size:
                raise AtollError(f"{where}: {here} has sample {row}, but samples run from 0 to {size - 1}. Remove it.")
            if row in taken:
                raise AtollError(f"{where}: sample {row} is in {taken[row]} and in {here}. Keep it in one of them.")
            taken[row] = here
        sound[part, client] = np.sort(numbers).astype(np.int64)
    return sound


def store(federation: FederatedDataset, content: str, cache: Path) -> None:
    """Store a federated data set as NAME.npz and NAME.json. The JSON file is written last and makes the pair valid."""
    arrays = {"public": federation.public}
    for part in PARTS:
        arrays[part] = np.concatenate(federation.part(part))
        arrays[f"{part}_sizes"] = np.array([len(rows) for rows in federation.part(part)])
    packed = BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    head = _head(federation, content) | {"clients": federation.clients}
    with _writing(cache):
        _write(cache / f"{federation.name}.npz", packed.getvalue())
        _write(cache / f"{federation.name}.json", json.dumps(head, indent=1).encode())


def load_cached(dataset: Dataset, content: str, cache: Path, name: str) -> FederatedDataset | None:
    """Return the cached federated data set of that name, or None if it is missing or damaged."""
    try:
        head = from_json((cache / f"{name}.json").read_text(encoding="utf-8"))
        with np.load(cache / f"{name}.npz", allow_pickle=False) as stored:
            rows: dict[str, list[Array]] = {
                part: np.split(stored[part], np.cumsum(stored[f"{part}_sizes"])[:-1]) for part in PARTS
            }
            rows["public"] = [stored["public"]]
        kept = _build(dataset, content, head, tuple(head["clients"]), rows, name)
    except (OSError, ValueError, KeyError, TypeError, BadZipFile, AtollError):
        return None
    return kept if kept.name == name else None


def _head(federation: FederatedDataset, content: str) -> dict[str, object]:
    return {
        "version": VERSION,
        "name": federation.name,
        "recipe": federation.recipe,
        "dataset": federation.dataset.name,
        "fingerprint": content,
        "digest": _digest(federation),
        "notes": list(federation.notes[len(federation.dataset.notes) :]),  # The data set brings its own.
    }


def _digest(federation: FederatedDataset) -> str:
    """Return a short hash of the rows of every client."""
    digest = sha256(repr(federation.clients).encode())
    for rows in (*federation.train, *federation.val, *federation.test, federation.public):
        update_hash(digest, rows)
    return digest.hexdigest()[:12]


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Create the folder, and turn an OSError inside the context into an AtollError that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise AtollError(f"Cannot write to folder '{folder}': {error.strerror}. Choose another one.") from None


def _write(path: Path, content: bytes) -> None:
    """Replace a file atomically, so that a reader never sees a part of it."""
    draft = path.with_name(f".{uuid4().hex}")
    draft.write_bytes(content)
    os.replace(draft, path)
