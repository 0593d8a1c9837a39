"""Define the records that the round loop and a backend exchange: tasks, uploads, results, losses, faults."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from ..core.client import Client
from ..core.optim.training_loss import TrainingLoss
from ..core.payloads import Payload
from ..core.task import Round
from ..typing import ClientId
from .evaluation import Score
from .fingerprints import Fingerprint
from .measured_model import MeasuredModel
from .score_table import PendingScore

UNREACHED, SILENT, LATE, LOST = "unreached", "silent", "late", "lost"  # why a client is missing from a round


class Dropped(NamedTuple):
    """A client that was asked to take part and did not answer in time."""

    client: ClientId
    round: int  # counted from 1, as in all output
    why: str


class RoundFaults(NamedTuple):
    """Simulated faults of one round.

    Args:
        absence: returns why a client does not answer, or None if it answers.
        is_late: returns True if an answer is too late, given the bytes that the client sent and received.
        tamper: changes the uploads of colluding byzantine clients.
    """

    absence: Callable[[ClientId], str | None]
    is_late: Callable[[ClientId, int, int], bool]
    tamper: Callable[[Iterable["ClientUpload"]], Iterable["ClientUpload"]]


NO_FAULTS = RoundFaults(lambda i: None, lambda i, up, down: False, lambda uploads: uploads)


class ClientTask(NamedTuple):
    """The work of one client in one exchange.

    Args:
        client: the client that works.
        round: the exchange.
        download: the server's message.
        evaluate: whether to score the personal model before and after training.
        known: score of the client's current state, if the state determines the model and was scored before.
        budget: number of batches of the training after the upload; None for the method's own number.
    """

    client: ClientId
    round: Round
    download: Any  # a Payload; None where a worker receives it by another way
    evaluate: bool = False
    known: Score | None = None
    budget: int | None = None


class Start(NamedTuple):
    """The beginning of a client's work that ends in a later round.

    Args:
        version: aggregations that the server had done when it made the client's download.
        sent: simulated time of the download, by each clock of the run.
    """

    version: int
    sent: Mapping[str, float]


@dataclass(eq=False)
class UploadBatch:
    """Uploads that were computed in one batched call, so that checks can run once for the whole batch.

    Args:
        stack: all uploads in one payload, with a leading dimension of clients.
        uploads: the same uploads by client.
        all_valid: whether the whole batch passed validation; None before validation.
    """

    stack: Payload
    uploads: Mapping[ClientId, Payload]
    all_valid: bool | None = None


class ClientUpload(NamedTuple):
    """A client's upload, and its score before training if one was requested.

    Args:
        sender: the client.
        upload: the message to the server, or a ``LostClient``.
        before: score of the personal model before training.
        fingerprint: fingerprint of the upload as it was sent, if taken by the sender or from received bytes.
        upload_batch: the batch in which the upload was computed. The upload may have been changed since.
        staleness: aggregations since the server made the download that the upload answers.
    """

    sender: ClientId
    upload: Any  # a Payload if the client kept to the protocol; other objects are rejected
    before: Score | PendingScore | None = None
    fingerprint: Fingerprint | None = None
    upload_batch: UploadBatch | None = None
    staleness: int = 0


class LostClient(NamedTuple):
    """Takes the place of an upload or a state that could not be computed or received.

    Args:
        reason: a sentence for the user.
        code: ``unreached``, ``silent``, ``late`` or ``lost``.
    """

    reason: str
    code: str = LOST


class ClientResult(NamedTuple):
    """A client's next state, and its score after training if one was requested.

    Arrives after the upload; the server does not wait for it before the aggregation.

    Args:
        sender: the client.
        state: its next state, or a ``LostClient``.
        after: score of the personal model after training.
        not_finite: whether the state holds NaN or infinity; None if not checked yet.
        model: the personal model that was scored; None if there is no score, or if no models are kept.
        lasting: whether the score depends on the state alone, so that it stays true until the state changes.
        loss: losses of the client's training in this exchange; None if not known.
    """

    sender: ClientId
    state: Any  # a Payload, or a LostClient
    after: Score | PendingScore | None = None
    not_finite: bool | None = None
    model: MeasuredModel | None = None
    lasting: bool = False
    loss: TrainingLoss | None = None


class Rejection(NamedTuple):
    """An upload that failed validation."""

    client: ClientId
    round: int  # counted from 1, as in all output
    field: str
    reason: str


@dataclass
class RoundLog:
    """Record of one round: participants, bytes, rejected and missing clients, scores."""

    t: int
    cohort: list[ClientId]
    up: dict[ClientId, int] = field(default_factory=dict)  # bytes
    down: dict[ClientId, int] = field(default_factory=dict)
    accepted: list[ClientId] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)  # no answer in time
    not_finite: list[ClientId] = field(default_factory=list)  # next state held NaN or infinity and was discarded
    lost: dict[ClientId, str] = field(default_factory=dict)  # reasons for which a client's work was lost
    before: dict[ClientId, Score | PendingScore] = field(default_factory=dict)
    after: dict[ClientId, Score | PendingScore] = field(default_factory=dict)
    lasting: set[ClientId] = field(
        default_factory=set
    )  # clients of ``after`` with scores that depend on the state alone
    losses: dict[ClientId, TrainingLoss] = field(default_factory=dict)  # of training, all exchanges together
    starts: dict[ClientId, Start] = field(default_factory=dict)  # of clients that started in an earlier round
    budgets: Mapping[ClientId, int] = field(default_factory=dict)  # batches after the upload, where these are bounded

    def version(self, i: ClientId) -> int:
        """Return the version of the server's state that client ``i`` started from."""
        return self.starts[i].version if i in self.starts else self.t

    @property
    def training_loss(self) -> float | None:
        """Return the mean training loss of the clients, each client counting once; None if it is not known."""
        known = [loss.mean for loss in self.losses.values() if loss.mean is not None]
        return fmean(known) if known else None

    @property
    def is_empty(self) -> bool:
        """Return True if the cohort had clients and none of them answered."""
        return bool(self.cohort) and not self.accepted and not self.rejected

    def record_loss(self, i: ClientId, loss: LostClient) -> None:
        """Record that client ``i`` gave no answer."""
        self.dropped.append(Dropped(i, self.t + 1, loss.code))
        if loss.code == LOST:
            self.lost[i] = loss.reason

    @property
    def absent(self) -> set[ClientId]:
        """Return the clients that were rejected or dropped; they take no further part in the round."""
        return {r.client for r in self.rejected} | {d.client for d in self.dropped}


# Replaces the upload that a method made by the one that leaves the client, for example with noise. Runs at the client.
# The client's own state and model are not filtered.
UploadFilter = Callable[[ClientTask, Client, Payload], Payload]


def no_filter(task: ClientTask, client: Client, upload: Payload) -> Payload:
    """Send the upload unchanged."""
    return upload
