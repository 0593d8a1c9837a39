"""A data set with its clients: who owns which rows, and for what."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np
from numpy.random import Generator

from ..documents import from_json
from ..errors import AtollError
from ..frames import html
from .dataset import Array, Dataset
from .partition import File, Natural, Pool, Scheme, parse
from .pickles import division
from .split import Parts, apportion, check, gaps, grouped, holdings, mirror, pick, within

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Literal["train", "val", "test"]
PARTS: tuple[Part, ...] = ("train", "val", "test")
VERSION = 1  # of the divisions and of their files: raised when the same request would give other rows
CHUNK = 1 << 24  # bytes hashed at a time
SHOWN = 20  # clients in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients with their rows, as indices into the pool: the training part followed by the test part.

    All index arrays are sorted, and no row is in two of them.
    """

    dataset: Dataset
    clients: tuple[str, ...]
    train: tuple[Array, ...]  # int64 [n_i] for every client
    val: tuple[Array, ...]
    test: tuple[Array, ...]
    public: Array  # int64: rows set aside for distillation; their labels are not to be used
    notes: tuple[str, ...]  # what was mended or left out
    name: str  # a short hash of everything that made it
    recipe: str = ""  # the same in one line of text

    def __post_init__(self) -> None:
        for client in self.clients:
            if any("\ud800" <= c <= "\udfff" for c in client):
                raise AtollError(
                    f"The name of client {client!r} has half a character, which no file can hold. Mend it."
                )

    def __repr__(self) -> str:
        train, val, test = (sum(map(len, self.part(part))) for part in PARTS)
        rows = f"{train} rows to train, {val} to validate, {test} to test"
        public = f", {len(self.public)} public" if len(self.public) else ""
        return f"<Federation {self.name} of {self.dataset.name}: {len(self.clients)} clients, {rows}{public}>"

    def _repr_html_(self) -> str:
        counts = self.counts()[:SHOWN].tolist()
        rows = [[client, sum(held), *held] for client, held in zip(self.clients, counts, strict=False)]
        return html(repr(self)[1:-1], ("client", "train", *self.dataset.classes), rows)

    def plot(self) -> "Figure":
        """Who holds what."""
        from ..report import plots  # drawing takes long to import

        return plots.holdings(self.counts().tolist(), self.clients, self.dataset.classes)

    def holdings(self) -> dict[str, Any]:
        """Rows of each class by client and part, as holdings.json has them."""
        return {
            "name": self.name,
            "clients": list(self.clients),
            "classes": list(self.dataset.classes),
            **{part: self.counts(part).tolist() for part in PARTS},
            "notes": list(self.notes),
        }

    def part(self, part: Part) -> tuple[Array, ...]:
        return {"train": self.train, "val": self.val, "test": self.test}[part]

    def parted(self, last: int) -> tuple["Federation", "Federation"]:
        """The clients without the last so many, and these; both know the public rows."""
        count = len(self.clients)
        if not 0 < last < count:
            raise AtollError(
                f"--newcomers {last}: of {count} clients, 1 to {count - 1} can stay out of the run. Change the number, "
                "or have more --clients."
            )
        return self._only(0, count - last), self._only(count - last, count)

    def _only(self, start: int, end: int) -> "Federation":
        recipe = f"{self.recipe}, clients {start} to {end - 1}"
        return replace(
            self,
            clients=self.clients[start:end],
            train=self.train[start:end],
            val=self.val[start:end],
            test=self.test[start:end],
            name=_short(self.name, start, end),
            recipe=recipe,
        )

    def counts(self, part: Part = "train") -> Array:
        """Rows of each class that each client holds, [clients, classes]."""
        return holdings(self.part(part), _pool_labels(self.dataset), self.dataset.num_classes)

    def rows(self, indices: Array) -> Array:
        """The inputs at these indices, without joining the two parts in memory."""
        return _gather(self.dataset.x_train, self.dataset.x_test, indices)

    def labels(self, indices: Array) -> Array:
        return _gather(self.dataset.y_train, self.dataset.y_test, indices)


@dataclass(frozen=True)
class _Request:
    """What a federation is made from, the data set apart."""

    scheme: Scheme
    clients: int | None
    split: str
    public: int
    seed: int

    def __str__(self) -> str:
        many = "all" if self.clients is None else self.clients
        return f"{self.scheme}, {many} clients, {self.split}, {self.public} public rows, seed {self.seed}"

    def stream(self, purpose: str) -> Generator:
        return stream(self.seed, str(self.scheme), purpose)


def federate(
    dataset: Dataset,
    clients: int | None,
    partition: str = "dirichlet:0.5",
    split: str = "client_811",
    seed: int = 0,
    public: int = 0,
    cache: Path | None = None,
) -> Federation:
    """Divides a data set among clients; the same request gives the same rows.

    ``clients`` may be None where the data or the file name them. A file also brings its own split and public rows. A
    folder given as ``cache`` keeps the result.
    """
    scheme = parse(partition)
    check(split, dataset)
    content = fingerprint(dataset)
    if isinstance(scheme, File):
        return _imported(dataset, content, scheme.path, clients, public)
    request = _Request(scheme, clients, split, public, seed)
    recipe = f"{dataset.name} ({content}), {request}"
    name = _short(VERSION, recipe)
    if cache is not None and (kept := _recall(dataset, content, cache, name)):
        return kept
    made = replace(_made(dataset, request), recipe=recipe, name=name)
    if cache is not None:
        _keep(made, content, cache)
    return made


def export(federation: Federation, path: Path) -> None:
    """Writes who owns what to a JSON file that the partition ``file:PATH`` reads back."""
    head = _head(federation, fingerprint(federation.dataset))
    owned = [
        {"id": client} | {part: federation.part(part)[i].tolist() for part in PARTS}
        for i, client in enumerate(federation.clients)
    ]
    body = head | {"public": federation.public.tolist(), "clients": owned}
    with _writing(path.parent):
        _write(path, json.dumps(body).encode())


def fingerprint(dataset: Dataset) -> str:
    """A short hash of everything a data set holds, its name apart."""
    digest = sha256(repr(dataset.classes).encode())
    for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
        _feed(digest, array)
    for owners in (dataset.owner_train, dataset.owner_test):
        digest.update(b"-" if owners is None else repr(owners.astype(str).tolist()).encode())
    return digest.hexdigest()[:12]


def _made(dataset: Dataset, request: _Request) -> Federation:
    scheme, split = request.scheme, request.split
    public, notes = _set_aside(dataset, request.public, stream(request.seed, "public"))
    divisible, left_out = _divisible(dataset, scheme, split, public)
    labels, owners = _pool_labels(dataset), _pool_owners(dataset)
    pool = Pool(labels[divisible], dataset.classes, None if owners is None else owners[divisible])
    division = scheme.divide(pool, request.clients, request.stream("partition"))
    owned = tuple(divisible[positions] for positions in division.rows)
    parts = within(owned, labels, dataset.num_classes, split, request.stream(split))
    if split == "official":
        if isinstance(scheme, Natural) and dataset.owner_test is not None:
            test = _own_tests(dataset.owner_test, division.clients)
        else:
            counts = holdings(owned, labels, dataset.num_classes)
            test = mirror(counts, pool.totals(), dataset.y_test, request.stream("test"))
        parts = replace(parts, test=tuple(rows + len(dataset.y_train) for rows in test))
    notes += left_out + division.notes + gaps(parts, labels, dataset.num_classes)
    return Federation(dataset, division.clients, parts.train, parts.val, parts.test, public, notes, name="")


def _set_aside(dataset: Dataset, public: int, rng: Generator) -> tuple[Array, tuple[str, ...]]:
    """Public rows out of the training part, as evenly over the classes as they allow."""
    totals = np.bincount(dataset.y_train, minlength=dataset.num_classes)
    room = totals // 2  # clients keep at least half of every class
    if not 0 <= public <= room.sum():
        raise AtollError(
            f"{public} public rows cannot be set aside from data set {dataset.name!r}. Use from 0 to {room.sum()}: "
            "the clients keep half of every class."
        )
    even = apportion(np.array([public]), (totals > 0)[None].astype(int), room[None], rng.random((1, len(totals))))[0]
    chosen = pick(dataset.y_train, even, rng)
    held = even[totals > 0]
    uneven = held.max() - held.min() > 1
    note = f"Public rows per class run from {held.min()} to {held.max()}, because small classes keep half their rows."
    return chosen, (note,) if uneven else ()


def _divisible(dataset: Dataset, scheme: Scheme, split: str, aside: Array) -> tuple[Array, tuple[str, ...]]:
    """The rows to divide: all that are not public; only training rows where the test part is kept as it is."""
    trained, tested = len(dataset.y_train), len(dataset.y_test)
    unowned = isinstance(scheme, Natural) and dataset.owner_test is None
    end = trained if split == "official" or unowned else trained + tested
    left_out = f"{tested} rows of the official test part have no owner and are left out."
    notes = (left_out,) if unowned and tested and split != "official" else ()
    return np.setdiff1d(np.arange(end), aside, assume_unique=True), notes


def _own_tests(owners: Array, clients: tuple[str, ...]) -> tuple[Array, ...]:
    """Every client's rows of the test part, as positions in it."""
    number = {client: i for i, client in enumerate(clients)}
    owner = np.array([number.get(name, -1) for name in owners.astype(str).tolist()])
    known = np.flatnonzero(owner >= 0)
    return grouped(known, owner[known], len(clients))


def _imported(dataset: Dataset, content: str, path: Path, clients: int | None, public: int) -> Federation:
    where = f"Partition 'file:{path}'"
    try:
        body = _body(path, dataset, content)
        ids = tuple(client["id"] for client in body["clients"])
        rows = {part: [client[part] for client in body["clients"]] for part in PARTS}
        federation = _assembled(dataset, content, body, ids, rows | {"public": [body["public"]]}, where)
    except OSError as error:
        raise AtollError(f"{where} cannot be read: {error.strerror}. Check the path.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise AtollError(
            f"{where} is not an exported partition ({type(error).__name__}: {error}). "
            "Make one with: atoll data show NAME --export FILE."
        ) from None
    for what, asked, given in (
        ("clients", clients or len(ids), len(ids)),
        ("public rows", public, len(federation.public)),
    ):
        if asked not in (given, 0):
            raise AtollError(f"{where} has {given} {what}, not {asked}. Ask for {given} or leave the number out.")
    return federation


def _body(path: Path, dataset: Dataset, content: str) -> Any:
    """What the file says, in our form. FL-bench's pickles name rows alone, also of clients without training rows."""
    if path.suffix != ".pkl":
        return from_json(path.read_text(encoding="utf-8"))
    told = division(path)
    clients = [{"id": str(i), **rows} for i, rows in enumerate(told) if rows["train"]]
    head = {"version": VERSION, "dataset": dataset.name, "fingerprint": content, "digest": "", "name": "", "recipe": ""}
    return head | {"notes": [], "public": [], "clients": clients}


def _assembled(
    dataset: Dataset,
    content: str,
    head: Mapping[str, Any],
    ids: tuple[str, ...],
    stored: Mapping[str, Sequence[Any]],
    where: str,
) -> Federation:
    """A federation from stored rows, if they are sound. It keeps its stored name only if they are unchanged."""
    if head["version"] != VERSION:
        raise AtollError(f"{where} has format {head['version']}, not {VERSION}. Export the partition again.")
    if head["fingerprint"] != content:
        raise AtollError(
            f"{where} was made for data set {head['dataset']!r} with content {head['fingerprint']}, but "
            f"{dataset.name!r} has content {content}. Load the data set it was made for."
        )
    if not ids or len(set(ids)) != len(ids) or not all(isinstance(client, str) and client for client in ids):
        raise AtollError(f"{where}: clients must have different ids, each a text, and there must be at least one.")
    lists: dict[tuple[str, str], Any] = {
        (part, client): rows for part in PARTS for client, rows in zip(ids, stored[part], strict=True)
    }
    lists["public", "rows"] = stored["public"][0]
    sound = _sound(lists, len(dataset.y_train) + len(dataset.y_test), where)
    train, val, test = (tuple(sound[part, client] for client in ids) for part in PARTS)
    public = sound["public", "rows"]
    notes = tuple(str(note) for note in head["notes"])
    same = Federation(dataset, ids, train, val, test, public, notes, str(head["name"]), str(head["recipe"]))
    if (digest := _digest(same)) == head["digest"]:
        return same
    recipe = f"{dataset.name} ({content}), rows listed in a file ({digest})"
    notes = gaps(Parts(train, val, test), _pool_labels(dataset), dataset.num_classes)
    return replace(same, notes=notes, name=_short(VERSION, recipe), recipe=recipe)


def _sound(lists: Mapping[tuple[str, str], Any], size: int, where: str) -> dict[tuple[str, str], Array]:
    """The lists of rows as sorted arrays; refuses rows that do not exist or are used twice, and empty clients."""
    taken: dict[int, str] = {}
    sound = {}
    for (part, client), values in lists.items():
        here = f"{part} of client {client!r}" if part != "public" else "public"
        numbers = np.asarray(values)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind != "i"):
            raise AtollError(f"{where}: {here} is not a list of whole numbers.")
        if part == "train" and not numbers.size:
            raise AtollError(f"{where}: client {client!r} has no training rows. Give it some or remove it.")
        for row in numbers.tolist():
            if not 0 <= row < size:
                raise AtollError(f"{where}: {here} has row {row}, but rows run from 0 to {size - 1}. Remove it.")
            if row in taken:
                raise AtollError(f"{where}: row {row} is in {taken[row]} and in {here}. Keep it in one of them.")
            taken[row] = here
        sound[part, client] = np.sort(numbers).astype(np.int64)
    return sound


def _keep(federation: Federation, content: str, cache: Path) -> None:
    """Stores a federation as NAME.npz and NAME.json; the latter comes last and makes the pair valid."""
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


def _recall(dataset: Dataset, content: str, cache: Path, name: str) -> Federation | None:
    """The stored federation of that name; None if there is none, or if it is damaged and must be made again."""
    try:
        head = from_json((cache / f"{name}.json").read_text(encoding="utf-8"))
        with np.load(cache / f"{name}.npz", allow_pickle=False) as stored:
            rows: dict[str, list[Array]] = {
                part: np.split(stored[part], np.cumsum(stored[f"{part}_sizes"])[:-1]) for part in PARTS
            }
            rows["public"] = [stored["public"]]
        kept = _assembled(dataset, content, head, tuple(head["clients"]), rows, name)
    except (OSError, ValueError, KeyError, TypeError, BadZipFile, AtollError):
        return None
    return kept if kept.name == name else None


def _head(federation: Federation, content: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "name": federation.name,
        "recipe": federation.recipe,
        "dataset": federation.dataset.name,
        "fingerprint": content,
        "digest": _digest(federation),
        "notes": list(federation.notes),
    }


def _digest(federation: Federation) -> str:
    """A short hash of who has which rows."""
    digest = sha256(repr(federation.clients).encode())
    for rows in (*federation.train, *federation.val, *federation.test, federation.public):
        _feed(digest, rows)
    return digest.hexdigest()[:12]


def _feed(digest: Any, array: Array) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    step = max(1, CHUNK // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[start : start + step]))


def stream(seed: int, *purpose: str) -> Generator:
    """An independent stream of random numbers for every seed and purpose."""
    text = "\x1f".join((str(seed), *purpose))
    return np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:16], "little"))


def _short(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:12]


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Makes the folder, and says so if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise AtollError(f"Cannot write to folder '{folder}': {error.strerror}. Choose another one.") from None


def _write(path: Path, content: bytes) -> None:
    """Replaces a file in one step, so that nobody ever reads half of it."""
    draft = path.with_name(f".{uuid4().hex}")
    draft.write_bytes(content)
    os.replace(draft, path)


def _pool_labels(dataset: Dataset) -> Array:
    return np.concatenate([dataset.y_train, dataset.y_test])


def _pool_owners(dataset: Dataset) -> Array | None:
    if dataset.owner_train is None:
        return None
    tested = dataset.owner_test if dataset.owner_test is not None else np.full(len(dataset.y_test), "")
    return np.concatenate([dataset.owner_train.astype(str), tested.astype(str)])


def _gather(first: Array, second: Array, indices: Array) -> Array:
    """``concatenate([first, second])[indices]`` at the cost of the result only."""
    later = indices >= len(first)
    if not later.any():
        return np.asarray(first[indices])
    out = np.empty((len(indices), *first.shape[1:]), dtype=first.dtype)
    out[~later] = first[indices[~later]]
    out[later] = second[indices[later] - len(first)]
    return out
