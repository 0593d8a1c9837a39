"""Simulate faults: clients that drop out, are slow, or are byzantine. All faults follow from the seed of the run.

Drop-outs and stragglers are drawn for every client and round; slow devices and byzantine clients are the same in all
rounds. The simulated server knows at once that a client dropped out, unless there is a deadline, until which it waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..clients.tasks import SILENT, UNREACHED
from ..core.client import Client
from ..core.payloads import Payload
from ..core.prng import Key, key, permutation, uniform
from ..core.schema import FieldConstraints
from ..errors import unknown
from ..typing import ClientId
from ..utils.parsing import Spec, anything, number, several, word
from .byzantine import ALIE, KINDS, collude, corrupt
from .clock import Times

if TYPE_CHECKING:
    from ..clients.tasks import ClientTask, ClientUpload, UploadFilter
WHEN = {"before": UNREACHED, "after": SILENT}  # relative to the download


@dataclass(frozen=True)
class Drop:
    """Clients that do not answer: a share of all client-rounds, or fixed clients in all rounds.

    Args:
        share: probability that a client does not answer in a round.
        why: ``unreached`` or ``silent``.
        always: clients that never answer.
    """

    share: float = 0.0
    why: str = SILENT
    always: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class Lag:
    """A share of clients or client-rounds that take ``factor`` times as long."""

    share: float
    factor: float


@dataclass(frozen=True)
class Poison:
    """A share of byzantine clients, and their attack."""

    share: float
    kind: str


NO_DROP, NO_LAG = Drop(), Lag(0.0, 1.0)

# ---------------------------------------------------------------------------------------------------------------------
# Values of options


SHARE = number("SHARE", least=0, most=1)
DROPPED_CLIENTS = Spec("client:NAME, or several names with commas, such as client:3,7", several(anything("NAME"), ","))
DROPPED_SHARE = Spec(
    "SHARE, such as 0.3, with :before if the download is lost too; or client:NAME, for a client that never answers",
    SHARE,
    word("WHEN", tuple(WHEN), optional=True),
)
LAG = Spec("SHARE:FACTOR, such as 0.2:4, to take 4 times as long", SHARE, number("FACTOR", least=1))
POISON = Spec(f"SHARE:KIND, such as 0.2:signflip; kinds: {', '.join(sorted(KINDS))}", SHARE, anything("KIND"))


def read_drop(text: str) -> Drop:
    """Read a value of ``--drop``: ``0.3``, ``0.3:before``, ``0.3:after``, or ``client:3,7``."""
    if text.partition(":")[0] == "client":
        [names] = DROPPED_CLIENTS.parse("--drop", text, skip=1)
        return Drop(always=names)
    share, *when = DROPPED_SHARE.parse("--drop", text)
    return Drop(share, WHEN[when[0] if when else "after"])


def read_lag(flag: str, text: str) -> Lag:
    """Read a share and how many times as long it takes, such as ``0.2:4``, given to the option ``flag``."""
    return Lag(*LAG.parse(flag, text))


def read_poison(text: str) -> Poison:
    """Read a value of ``--poison``, such as ``0.2:signflip``."""
    share, kind = POISON.parse("--poison", text)
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS, "of --poison")
    return Poison(share, kind)


@dataclass(frozen=True)
class Faults:
    """The faults of a run; none by default.

    Args:
        ids: the clients of the run.
        seed: seed of the run.
        drop: clients that do not answer.
        slow: clients with slow devices.
        stragglers: client-rounds in which everything is slow.
        poison: byzantine clients.
    """

    ids: Sequence[ClientId]
    seed: int
    drop: Drop = NO_DROP
    slow: Lag = NO_LAG
    stragglers: Lag = NO_LAG
    poison: Poison | None = None

    def __post_init__(self) -> None:
        for i in self.drop.always:
            if i not in self.ids:
                raise unknown("client", i, self.ids, "for --drop")

    def absence(self, t: int, i: ClientId) -> str | None:
        """Return why client ``i`` does not answer in round ``t``, or None if it answers."""
        dropped = i in self.drop.always or self._hit(self.drop.share, "drop", t, i)
        return self.drop.why if dropped else None

    def delay(self, times: Times, t: int, i: ClientId) -> Times:
        """Apply slow devices to computation, and stragglers to computation and communication."""
        device = self.slow.factor if i in self.slow_clients else 1.0
        straggling = self.stragglers.factor if self._hit(self.stragglers.share, "straggler", t, i) else 1.0
        local, personal, upload, download = times
        return Times(
            local * device * straggling, personal * device * straggling, upload * straggling, download * straggling
        )

    @cached_property
    def slow_clients(self) -> frozenset[ClientId]:
        """Return the clients with slow devices."""
        return self._chosen(self.slow.share, key(self.seed, "slow"))

    @cached_property
    def poisoned(self) -> frozenset[ClientId]:
        """Return the byzantine clients."""
        return self._chosen(self.poison.share, key(self.seed, "poison")) if self.poison else frozenset()

    def upload_filter(self, honest: "UploadFilter", constraints: Mapping[str, FieldConstraints]) -> "UploadFilter":
        """Return the upload filter that corrupts uploads of byzantine clients and applies ``honest`` to others."""
        if self.poison is None:
            return honest
        kind = self.poison.kind

        def apply(job: "ClientTask", client: Client, upload: Payload) -> Payload:
            if job.client not in self.poisoned:
                sent: Payload = honest(job, client, upload)
                return sent
            k = key(self.seed, "lie", *job.round, job.client)
            return corrupt(kind, upload, job.download, client.problem.num_classes, constraints, k)

        return apply

    def tamper(
        self, outcomes: Iterable["ClientUpload"], constraints: Mapping[str, FieldConstraints]
    ) -> Iterable["ClientUpload"]:
        """Replace the uploads of byzantine clients if these collude."""
        colludes = self.poison is not None and self.poison.kind == ALIE
        return collude(outcomes, self.poisoned, constraints) if colludes else outcomes

    def _hit(self, share: float, what: str, t: int, i: ClientId) -> bool:
        return share > 0 and float(uniform(key(self.seed, what, t, i))) < share

    def _chosen(self, share: float, k: Key) -> frozenset[ClientId]:
        order = permutation(k, len(self.ids)).tolist()
        return frozenset(self.ids[at] for at in order[: round(share * len(self.ids))])


def read_faults(
    ids: Sequence[ClientId],
    seed: int,
    *,
    drop: str | None = None,
    slow: str | None = None,
    stragglers: str | None = None,
    poison: str | None = None,
) -> Faults:
    """Read the faults of a run from the options of the same names.

    Args:
        ids: the clients of the run.
        seed: seed of the run, from which all faults follow.
        drop: clients that do not answer, such as ``0.3`` or ``client:3``.
        slow: slow devices, such as ``0.2:4``.
        stragglers: slow client-rounds, such as ``0.2:4``.
        poison: Byzantine clients, such as ``0.2:signflip``.
    """
    return Faults(
        ids,
        seed,
        NO_DROP if drop is None else read_drop(drop),
        NO_LAG if slow is None else read_lag("--slow", slow),
        NO_LAG if stragglers is None else read_lag("--stragglers", stragglers),
        None if poison is None else read_poison(poison),
    )
