"""Messages between the round loop and a backend: tasks, uploads, results, losses, faults."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.client import Client
from ..core.task import Round
from ..typing import ClientId
from .evaluation import Score
from .fingerprints import Fingerprint

UNREACHED, SILENT, LATE, LOST = "unreached", "silent", "late", "lost"  # why a client is missing from a round


class Dropped(NamedTuple):
    """A client that was asked to take part and did not answer in time."""

    client: ClientId
    round: int  # counted from 1, as in all that users see
    why: str


# ---------------------------------------------------------------------------------------------------------------------
# What comes of it


class RoundFaults(NamedTuple):
    """What goes wrong in one round."""

    gone: Callable[[ClientId], str | None]  # why a client will not answer, if so
    late: Callable[[ClientId, int, int], bool]  # whether an answer is too late, given bytes up and down
    tampered: Callable[
        [Iterable["ClientUpload"]], Iterable["ClientUpload"]
    ]  # what liars who know of one another make of theirs


NO_FAULTS = RoundFaults(lambda i: None, lambda i, up, down: False, lambda outcomes: outcomes)


class ClientTask(NamedTuple):
    """One client's part in one exchange."""

    client: ClientId
    round: Round
    download: Any
    evaluate: bool = False  # measure the personal model before and after
    known: Score | None = None  # of the client's state as it is, if its model is in there and has been measured


@dataclass(eq=False)
class UploadBatch:
    """Uploads that were made in one call: what is looked up for all of them at once need not be for each."""

    stack: Any  # all of them in one payload, clients first
    uploads: Mapping[ClientId, Any]  # the same, one by one
    sound: bool | None = None  # whether none of them has a flaw; None: nobody has looked


class ClientUpload(NamedTuple):
    """What the server waits for: the upload. With it, if asked for, the score of the model before training."""

    sender: ClientId
    upload: Any
    before: Score | None = None
    fingerprint: Fingerprint | None = None  # of the upload as it was sent, if it was taken there or came as bytes
    upload_batch: UploadBatch | None = (
        None  # with whom the upload was made, if with somebody; it may have been changed since
    )


class LostClient(NamedTuple):
    """In place of an upload or a state: there is none."""

    reason: str
    why: str = LOST


class ClientResult(NamedTuple):
    """What nobody waits for: the client's next state and, if asked for, the score of its trained model."""

    sender: ClientId
    state: Any
    after: Score | None = None
    spoilt: bool | None = None  # whether the state holds NaN or infinity; None: nobody has looked
    lasting: bool = False  # whether the score holds as long as the state does, whatever the client receives


class Rejection(NamedTuple):
    client: ClientId
    round: int  # counted from 1, as in all that users see
    field: str
    reason: str


@dataclass
class RoundLog:
    """What happened in one round."""

    t: int
    cohort: list[ClientId]
    up: dict[ClientId, int] = field(default_factory=dict)  # bytes
    down: dict[ClientId, int] = field(default_factory=dict)
    accepted: list[ClientId] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)  # never answered, or too late
    spoilt: list[ClientId] = field(default_factory=list)  # whose next state was not finite, so that the last one stays
    lost: dict[ClientId, str] = field(default_factory=dict)  # whose work or personal training was lost, and why
    before: dict[ClientId, Score] = field(default_factory=dict)
    after: dict[ClientId, Score] = field(default_factory=dict)
    lasting: set[ClientId] = field(default_factory=set)  # of these: whose scores hold as long as their states do

    @property
    def empty(self) -> bool:
        """Whether nobody answered at all."""
        return bool(self.cohort) and not self.accepted and not self.rejected

    def lose(self, i: ClientId, why: LostClient) -> None:
        self.dropped.append(Dropped(i, self.t + 1, why.why))
        if why.why == LOST:
            self.lost[i] = why.reason

    @property
    def absent(self) -> set[ClientId]:
        """Clients whose part in the round is over."""
        return {r.client for r in self.rejected} | {d.client for d in self.dropped}


# The way out: what leaves a client in place of the upload that its method made. Run where the client runs, on its rows;
# what the client itself uses (its state, its own model) is what the method made.
UploadFilter = Callable[[ClientTask, Client, Any], Any]


def no_filter(job: ClientTask, client: Client, upload: Any) -> Any:
    """The open way out."""
    return upload
