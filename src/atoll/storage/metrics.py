"""Define the lines of metrics.jsonl, one for every evaluated round."""

from typing import NotRequired, TypedDict

from ..clients.evaluation import Score
from ..typing import ClientId


class PersonalScores(TypedDict):
    """Scores of the personal models, over all clients."""

    post: Score  # after training
    pre: Score  # before training
    honest: NotRequired[Score]  # after training, of clients that are not Byzantine; only where some are


# A functional definition, because "global" is a keyword.
GenericScores = TypedDict(
    "GenericScores",
    {
        "source": str,  # "server", or "average" of the personal models
        "global": Score,  # on all test rows together
        "local": Score,  # over clients
    },
)


class Traffic(TypedDict):
    """Bytes so far, over all clients."""

    up: int
    down: int


class Operations(TypedDict):
    """Floating-point operations so far."""

    clients: float
    server: float


class ClockTimes(TypedDict):
    """Simulated seconds since the run began."""

    generic: float  # when the server has aggregated
    personal: float  # when the last client of the round has its personal model


class RejectedUpload(TypedDict):
    """An upload that was not used."""

    client: ClientId
    round: int
    field: str
    reason: str


class MissedAnswer(TypedDict):
    """A client that did not answer in time."""

    client: ClientId
    round: int
    why: str


class NonFiniteState(TypedDict):
    """A client whose next state held NaN or infinity, so that the last one was kept."""

    client: ClientId
    round: int


class TrainingMetrics(TypedDict):
    """The training of the clients of a round."""

    loss: float  # what clients minimised: mean over the rows of a client's steps, then over clients


class OptionalMetrics(TypedDict, total=False):
    """Entries that a line has only if they apply."""

    dropped: list[MissedAnswer]  # since the last line
    not_finite: list[NonFiniteState]  # since the last line
    excluded: list[ClientId]  # after too many rejected uploads
    privacy: dict[str, object]  # budget spent, and the tally of the gate
    training: TrainingMetrics  # of clients that trained in the round; not where sites keep it to themselves
    staleness: float  # mean staleness of the round's uploads, where rounds are not synchronous
    late: int  # answers of sites that came too late to count


class RoundMetrics(OptionalMetrics):
    """One line of metrics.jsonl. Bytes, operations and times are totals since the run began."""

    round: int  # counted from 1
    personal: PersonalScores
    generic: GenericScores | None
    bytes: Traffic
    flops: Operations
    clock: dict[str, ClockTimes]  # by whether clients wait: "waiting", "wait_free"
    participants: list[ClientId]
    rejected: list[RejectedUpload]  # since the last line
    seconds: float  # measured on this machine
