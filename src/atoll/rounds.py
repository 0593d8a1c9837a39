"""The only round loop, the same for every method and every backend."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from . import calls, robust, securesum
from .auditlog import Imprint
from .core import ClientId, Method, Reply, Round, Task, contract
from .evaluate import Score
from .faults import CALM, LATE, LOST, UNREACHED, Dropped, Trouble
from .key import key, permutation
from .payload import nbytes, plain
from .stacks import repeated
from .steps import told
from .store import MemoryStore, Store
from .validation import Flaw, Validator, flaw, is_finite

AnyMethod = Method[Any, Any, Any, Any]


class Job(NamedTuple):
    """One client's part in one exchange."""

    client: ClientId
    round: Round
    download: Any
    examine: bool = False  # measure the personal model before and after
    known: Score | None = None  # of the client's state as it is, if its model is in there and has been measured


@dataclass(eq=False)
class Party:
    """Uploads that were made in one call: what is looked up for all of them at once need not be for each."""

    stack: Any  # all of them in one payload, clients first
    uploads: Mapping[ClientId, Any]  # the same, one by one
    sound: bool | None = None  # whether none of them has a flaw; None: nobody has looked


class Outcome(NamedTuple):
    """What the server waits for: the upload. With it, if asked for, the score of the model before training."""

    sender: ClientId
    upload: Any
    before: Score | None = None
    imprint: Imprint | None = None  # of the upload as it was sent, if it was taken there or came as bytes
    party: Party | None = None  # with whom the upload was made, if with somebody; it may have been changed since


class Lost(NamedTuple):
    """In place of an upload or a state: there is none."""

    reason: str
    why: str = LOST


class Rest(NamedTuple):
    """What nobody waits for: the client's next state and, if asked for, the score of its trained model."""

    sender: ClientId
    state: Any
    after: Score | None = None
    spoilt: bool | None = None  # whether the state holds NaN or infinity; None: nobody has looked
    lasting: bool = False  # whether the score holds as long as the state does, whatever the client receives


class Backend(Protocol):
    """Runs client functions somewhere."""

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs, also of clients that turn out to be absent."""
        ...

    def rest(self) -> Iterator[Rest]:
        """What came after the uploads of the last call of ``train``, once all of these have been read."""
        ...

    def commit(self, rest: Rest) -> None:
        """Keep the client's next state: its upload was accepted."""
        ...

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """What a client kept, or what it starts with."""
        ...

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Any) -> Score:
        """Measure the personal model of a client as it is, without training."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


Note = Callable[[Round, Outcome, Flaw | None], None]  # told of every upload, and of what is wrong with it


class Rejection(NamedTuple):
    client: ClientId
    round: int  # counted from 1, as in all that users see
    field: str
    reason: str


@dataclass
class Log:
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

    def lose(self, i: ClientId, why: Lost) -> None:
        self.dropped.append(Dropped(i, self.t + 1, why.why))
        if why.why == LOST:
            self.lost[i] = why.reason

    @property
    def absent(self) -> set[ClientId]:
        """Clients whose part in the round is over."""
        return {r.client for r in self.rejected} | {d.client for d in self.dropped}


class Desks:
    """The server's own states of clients, in a store; made when first asked for, None for methods that keep none."""

    def __init__(self, method: AnyMethod, task: Task, seed: int, store: Store):
        self._method, self._task, self._seed, self._store = method, task, seed, store

    def get(self, i: ClientId) -> Any:
        if not self._method.keeps_desks:
            return None
        kept = self._store.get(i)
        return calls.init_desk(self._method, self._task, i, key(self._seed, "desk", i)) if kept is None else kept

    def download(self, server: Any, to: ClientId, r: Round) -> Any:
        """What a client receives."""
        return calls.download(self._method, server, self.get(to), to, self._task, r)

    def served(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        """Replies as ``aggregate`` gets them: with desks, after the server's work for each client."""
        return self._at_desks(server, replies, r) if self._method.keeps_desks else replies

    def _at_desks(self, server: Any, replies: Iterator[Reply[Any]], r: Round) -> Iterator[Reply[Any]]:
        for reply in replies:
            k = key(self._seed, "serve", *r, reply.sender)
            with torch.no_grad():
                desk = self.get(reply.sender)
                upload, desk = plain(calls.serve(self._method, server, desk, reply, self._task, r, k))
            self._store.put(reply.sender, desk)
            yield Reply(reply.sender, upload)


@dataclass(frozen=True)
class Rules:
    """How a server treats clients and their uploads in a round. By default: it trusts them, as far as types go."""

    checks: Validator | None = None  # without them an upload is judged by its class alone
    excluded: Collection[ClientId] = ()  # absent if sampled
    guard: robust.Guard | None = None  # in place of means
    fixed: securesum.Fixed | None = None  # sums in fixed point
    trouble: Trouble = CALM  # faults to order
    note: Note | None = None  # told of every upload that arrives, once it has been judged

    def judged(self, r: Round, outcome: Outcome, fault: Flaw | None) -> None:
        if self.note is not None:
            self.note(r, outcome, fault)


def play(
    method: AnyMethod,
    task: Task,
    backend: Backend,
    server: Any,
    t: int,
    seed: int,
    rate: float,
    examine: Collection[str],
    desks: Store | None = None,
    rules: Rules = Rules(),
    known: Mapping[ClientId, Score] = MappingProxyType({}),
) -> tuple[Any, Log]:
    """Round ``t``: sample, broadcast, local, validate, aggregate. The models of clients in ``examine`` are measured.

    Those of ``known`` clients are still what they were when they got these scores, if they are in the clients' states.
    """
    away, trouble = set(rules.excluded), rules.trouble
    log = Log(t, [i for i in sample(task.clients, rate, seed, t) if i not in away])
    office = Desks(method, task, seed, MemoryStore() if desks is None else desks)
    _lose(log, trouble, lambda i: nbytes(office.download(server, i, Round(t))))
    for r in (Round(t, phase) for phase in range(method.phases)):
        # Every download is made before any client runs: no client sees what another one did in this exchange.
        # A client whose upload failed or never came in an earlier exchange of the round is absent from the others.
        absent = log.absent
        present = [i for i in log.cohort if i not in absent]
        jobs = [Job(i, r, office.download(server, i, r), i in examine, known.get(i)) for i in present]
        for i, size in zip(present, repeated(nbytes, [job.download for job in jobs]), strict=True):
            log.down[i] = log.down.get(i, 0) + size
        outcomes = trouble.tampered(told("clients", backend.train(method, seed, jobs), len(jobs)))
        accepted = _accepted(outcomes, _judge(method, jobs, rules.checks), rules, log, r)
        replies = office.served(server, accepted, r)
        first = next(replies, None)
        if first is not None:  # without a single valid upload the server stays as it is
            received: Iterator[Reply[Any]] = chain([first], replies)
            if rules.guard:
                received = robust.unguarded(received)
            with torch.no_grad(), robust.using(rules.guard, server), securesum.using(rules.fixed):
                server = plain(calls.aggregate(method, server, received, task, r, key(seed, "server", *r)))
        for _ in replies:  # a method may ignore replies; the clients have to run all the same
            pass
        _conclude(backend, log)
    return server, log


def _judge(method: AnyMethod, jobs: Sequence[Job], checks: Validator | None) -> Callable[[Outcome], Flaw | None]:
    """Who says whether an outcome can be used."""
    downloads, kind = {job.client: job.download for job in jobs}, contract(method).upload
    if checks is None:
        return lambda outcome: flaw(outcome.upload, kind)

    def judge(outcome: Outcome) -> Flaw | None:
        party, sender = outcome.party, outcome.sender
        if party is not None and party.uploads.get(sender) is outcome.upload:
            if party.sound is None:
                party.sound = checks.sound(party.uploads, downloads[sender], party.stack)
            if party.sound:
                return None
        return checks.flaw(sender, downloads[sender], outcome.upload)

    return judge


def _lose(log: Log, trouble: Trouble, size: Callable[[ClientId], int]) -> None:
    """Clients that will not answer; most have received the download, whose size is counted."""
    for i in log.cohort:
        if why := trouble.gone(i):
            log.dropped.append(Dropped(i, log.t + 1, why))
            if why != UNREACHED:
                log.down[i] = size(i)


def _accepted(
    outcomes: Iterable[Outcome], judge: Callable[[Outcome], Flaw | None], rules: Rules, log: Log, r: Round
) -> Iterator[Reply[Any]]:
    """Uploads that pass, one at a time; a client whose upload fails or comes too late counts as absent."""
    for outcome in outcomes:
        if isinstance(outcome.upload, Lost):
            log.lose(outcome.sender, outcome.upload)
            continue
        fault = judge(outcome)
        up = log.up.get(outcome.sender, 0) + (0 if fault else nbytes(outcome.upload))
        if fault is None and rules.trouble.late(outcome.sender, up, log.down[outcome.sender]):
            log.dropped.append(Dropped(outcome.sender, log.t + 1, LATE))
            rules.judged(r, outcome, Flaw("upload", "came too late"))
            continue
        rules.judged(r, outcome, fault)
        if fault:
            log.rejected.append(Rejection(outcome.sender, log.t + 1, *fault))
            continue
        log.accepted.append(outcome.sender)
        log.up[outcome.sender] = up
        if outcome.before is not None:
            log.before.setdefault(outcome.sender, outcome.before)
        yield Reply(outcome.sender, outcome.upload)


def _conclude(backend: Backend, log: Log) -> None:
    """Keep the states of the clients whose uploads passed, unless their own training has diverged."""
    absent = log.absent
    for rest in told("personal models", backend.rest(), len(log.accepted)):
        if rest.sender in absent:
            continue
        if isinstance(rest.state, Lost):  # after its upload: that counts, and the client is where it was before
            log.lost[rest.sender] = rest.state.reason
        elif not is_finite(rest.state) if rest.spoilt is None else rest.spoilt:
            log.spoilt.append(rest.sender)
        else:
            backend.commit(rest)
            if rest.after is not None:
                log.after[rest.sender] = rest.after
                log.lasting |= {rest.sender} if rest.lasting else set()


def sample(clients: Sequence[ClientId], rate: float, seed: int, t: int) -> list[ClientId]:
    """The clients of round ``t``, drawn without replacement, in their own order."""
    count = max(1, round(rate * len(clients)))
    if count == len(clients):
        return list(clients)
    chosen = permutation(key(seed, "sample", t), len(clients))[:count]
    return [clients[j] for j in sorted(chosen.tolist())]
