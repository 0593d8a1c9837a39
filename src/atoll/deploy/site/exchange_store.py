"""Store a site's exchanges of a run on disk, each atomically in its own folder with checksums.

runs/RUN/begin.json             the server's announcement of the run
runs/RUN/000003-0-KEY/          round 3 (from 0), exchange 0; the key is a digest of the request
    request.frame               the request, from which the exchange can be repeated
    made.safetensors            the upload before the privacy filter
    reply.frame                 the reply that was sent
    answered.json               checksums of these files; once written, the stored reply answers the request
    state.safetensors           the client's next state
    concluded.json              its checksum, and the scores
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ...utils.files import sync_folder, to_json, write_whole
from ...utils.parsing import Json
from ..transport.protocol import Refusal

RUN = re.compile(r"[0-9a-f]{16,64}")
_FOLDER = re.compile(r"(\d{6,})-(\d+)-([0-9a-f]{16})")
_ANSWERED, _CONCLUDED = "answered.json", "concluded.json"


class StateRef(NamedTuple):
    """A reference to a state: the exchange that made it, and its digest."""

    round: int  # from 0
    exchange: int
    digest: str


@dataclass(frozen=True)
class StoredExchange:
    """One stored exchange."""

    folder: Path

    def begin(self, request: bytes, made: bytes) -> None:
        """Store the request and the upload before anything leaves the site."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for mark in (_ANSWERED, _CONCLUDED):  # They remain if the stored files were found damaged.
            (self.folder / mark).unlink(missing_ok=True)
        self._put("request.frame", request)
        self._put("made.safetensors", made)

    def answer(self, reply: bytes) -> None:
        """Store the reply before it is sent."""
        self._put("reply.frame", reply)
        self._seal(_ANSWERED, ("request.frame", "made.safetensors", "reply.frame"), {})

    def conclude(self, state: bytes, notes: Mapping[str, object]) -> None:
        """Store the client's next state, with notes such as its scores."""
        self._put("state.safetensors", state)
        self._seal(_CONCLUDED, ("state.safetensors",), notes)

    @property
    def answered(self) -> bool:
        """Return True if the reply is stored and intact."""
        return self._is_intact(_ANSWERED)

    @property
    def concluded(self) -> bool:
        """Return True if the next state is stored and intact."""
        return self._is_intact(_CONCLUDED)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.folder / name).read_bytes()

    def notes(self) -> Json:
        """Return the notes that were stored with the state."""
        return dict(json.loads(self.read(_CONCLUDED)))

    def digest(self) -> str | None:
        """Return the reference to the state of this exchange, or None if there is none yet."""
        try:
            return str(json.loads(self.read(_CONCLUDED))["state.safetensors"])
        except (OSError, ValueError, KeyError):
            return None

    def _put(self, name: str, data: bytes) -> None:
        write_whole(self.folder / name, data)

    def _seal(self, mark: str, names: Collection[str], notes: Mapping[str, object]) -> None:
        sums = {name: sha256(self.read(name)).hexdigest() for name in names}
        self._put(mark, to_json({**notes, **sums}).encode())
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def _is_intact(self, mark: str) -> bool:
        try:
            sums = {name: v for name, v in json.loads(self.read(mark)).items() if "." in name}
            return bool(sums) and all(sha256(self.read(name)).hexdigest() == value for name, value in sums.items())
        except (OSError, ValueError, AttributeError):
            return False


class ExchangeStore:
    """The stored exchanges of a site in one run."""

    def __init__(self, folder: Path, run: str):
        if not RUN.fullmatch(run):
            raise Refusal("request", f"{run!r} is not the name of a run.")
        self.folder = folder / "runs" / run

    @property
    def begun(self) -> bool:
        """Return True if the site knows the run."""
        return (self.folder / "begin.json").exists()

    def begin(self, document: Json) -> None:
        """Store the server's announcement of the run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.begun:
            (self.folder / "first").touch()  # Its time is that of the begin; later announcements leave it.
        write_whole(self.folder / "begin.json", to_json(document, indent=1).encode())
        sync_folder(self.folder)

    def document(self) -> Json:
        """Return the server's announcement of the run."""
        try:
            return dict(json.loads((self.folder / "begin.json").read_bytes()))
        except (OSError, ValueError) as reason:
            raise Refusal("run") from reason

    def count_request(self, kind: str, of: str, digest: str, most: int) -> None:
        """Count a request that is not the repetition of an earlier one.

        Args:
            kind: kind of the request.
            of: the exchange or the state that the request is about.
            digest: identifies the content of the request.
            most: number of different requests of this kind for one exchange or state.

        Raises:
            Refusal: if there were as many different requests before.
        """
        path = self.folder / "requests.json"
        known: dict[str, list[str]] = json.loads(path.read_bytes()) if path.exists() else {}
        digests = known.setdefault(f"{kind} {of}", [])
        if digest in digests:
            return
        if len(digests) >= most:
            raise Refusal("rules", f"The server sent {most + 1} different requests ({kind}) for one step of a run.")
        digests.append(digest)
        write_whole(path, to_json(known).encode())

    def entry(self, round: int, exchange: int, key: str) -> StoredExchange:
        """Return the place of an exchange, whether or not it is stored."""
        return StoredExchange(self.folder / f"{round:06d}-{exchange}-{key[:16]}")

    def find(self, state_ref: StateRef) -> StoredExchange:
        """Return the exchange of a state; refuse a state that is missing or damaged."""
        for round, exchange, entry in self.entries():
            if (round, exchange, entry.digest()) == state_ref and entry.concluded:
                return entry
        raise Refusal("state", f"There is no intact state of round {state_ref.round + 1} in {self.folder}.")

    def entries(self) -> Iterator[tuple[int, int, StoredExchange]]:
        """Yield round, position in the round, and content of all stored exchanges, in order."""
        for path in sorted(self.folder.glob("*-*-*")):
            if match := _FOLDER.fullmatch(path.name):
                yield int(match[1]), int(match[2]), StoredExchange(path)

    def tidy(self, needed: Collection[StateRef], round: int | None = None) -> None:
        """Delete all exchanges except those of a round and those whose states are needed."""
        for t, exchange, entry in list(self.entries()):
            digest = entry.digest()
            if t != round and (digest is None or StateRef(t, exchange, digest) not in needed):
                shutil.rmtree(entry.folder)
