"""Faults to order: clients that vanish, lag behind or lie. All follow from the seed, so a run can be repeated.

Who drops out or dawdles is drawn anew for every client and round; slow devices and liars are the same in all rounds.
The simulated server learns at once that a client is gone, unless it has a deadline: then it waits until that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from ..clients.tasks import SILENT, UNREACHED
from ..core.client import Client
from ..core.prng import Key, key, permutation, uniform
from ..core.schema import FieldConstraints
from ..errors import AtollError, unknown
from ..typing import ClientId
from .byzantine import ALIE, KINDS, collude, corrupt
from .clock import Times

if TYPE_CHECKING:
    from ..clients.tasks import ClientTask, ClientUpload, UploadFilter
WHEN = {"before": UNREACHED, "after": SILENT}  # its download, that is


@dataclass(frozen=True)
class Drop:
    """Clients that do not answer: a share of all client-rounds, or always the same ones."""

    share: float = 0.0
    why: str = SILENT
    always: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class Lag:
    share: float
    factor: float


@dataclass(frozen=True)
class Poison:
    share: float
    kind: str


NO_DROP, NO_LAG = Drop(), Lag(0.0, 1.0)

# ---------------------------------------------------------------------------------------------------------------------
# What users write


def read_drop(text: str) -> Drop:
    """``0.3``, ``0.3:before``, ``0.3:after``, or ``client:3,7``."""
    first, _, second = text.partition(":")
    if first == "client" and all(second.split(",")):
        return Drop(always=tuple(second.split(",")))
    share = _number(first, 0, 1)
    if share is None or (second or "after") not in WHEN:
        raise AtollError(
            f"--drop cannot be {text!r}. Write a share from 0 to 1, such as 0.3, with :before if the download is lost "
            "too; or client:NAME, for a client that never answers, or several with commas."
        )
    return Drop(share, WHEN[second or "after"])


def read_lag(flag: str, text: str) -> Lag:
    """``0.2:4``: a share, and how many times as long it takes."""
    first, _, second = text.partition(":")
    share, factor = _number(first, 0, 1), _number(second, 1, inf)
    if share is None or factor is None:
        raise AtollError(
            f"{flag} cannot be {text!r}. Write SHARE:FACTOR, such as 0.2:4: a share from 0 to 1, and how many times as "
            "long it takes, at least 1."
        )
    return Lag(share, factor)


def read_poison(text: str) -> Poison:
    """``0.2:signflip``."""
    first, _, kind = text.partition(":")
    share = _number(first, 0, 1)
    if share is None or not kind:
        raise AtollError(f"--poison cannot be {text!r}. Write SHARE:KIND, such as 0.2:signflip; kinds: {_kinds()}.")
    if kind not in KINDS:
        raise unknown("kind of --poison", kind, KINDS)
    return Poison(share, kind)


def _kinds() -> str:
    return ", ".join(sorted(KINDS))


def _number(text: str, low: float, high: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if low <= number <= high and number != inf else None


@dataclass(frozen=True)
class Faults:
    """The faults of a run; none by default."""

    ids: Sequence[ClientId]
    seed: int
    drop: Drop = NO_DROP
    slow: Lag = NO_LAG
    stragglers: Lag = NO_LAG
    poison: Poison | None = None

    def __post_init__(self) -> None:
        for i in self.drop.always:
            if i not in self.ids:
                raise unknown("client for --drop", i, self.ids)

    def gone(self, t: int, i: ClientId) -> str | None:
        """Why a client does not answer in round ``t``, if so."""
        dropped = i in self.drop.always or self._hit(self.drop.share, "drop", t, i)
        return self.drop.why if dropped else None

    def delayed(self, times: Times, t: int, i: ClientId) -> Times:
        """A slow device computes slowly; for a straggler, everything takes long."""
        device = self.slow.factor if i in self.laggards else 1.0
        moment = self.stragglers.factor if self._hit(self.stragglers.share, "straggler", t, i) else 1.0
        local, personal, upload, download = times
        return Times(local * device * moment, personal * device * moment, upload * moment, download * moment)

    @cached_property
    def laggards(self) -> frozenset[ClientId]:
        """Clients with slow devices."""
        return self._chosen(self.slow.share, key(self.seed, "slow"))

    @cached_property
    def poisoned(self) -> frozenset[ClientId]:
        """Clients who lie."""
        return self._chosen(self.poison.share, key(self.seed, "poison")) if self.poison else frozenset()

    def upload_filter(self, honest: "UploadFilter", constraints: Mapping[str, FieldConstraints]) -> "UploadFilter":
        """The way out of a client: that of the honest, but for those who lie."""

        def leave(job: "ClientTask", client: Client, upload: Any) -> Any:
            if self.poison is None or job.client not in self.poisoned:
                return honest(job, client, upload)
            k = key(self.seed, "lie", *job.round, job.client)
            return corrupt(self.poison.kind, upload, job.download, client.num_classes, constraints, k)

        return leave

    def tampered(
        self, outcomes: Iterable["ClientUpload"], constraints: Mapping[str, FieldConstraints]
    ) -> Iterable["ClientUpload"]:
        """Outcomes as they reach the server, if liars have agreed on theirs."""
        agreed = self.poison is not None and self.poison.kind == ALIE
        return collude(outcomes, self.poisoned, constraints) if agreed else outcomes

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
    """Return the faults that users ask for by the options of the same names.

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
