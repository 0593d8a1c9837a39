"""Clients in other processes: what goes to them and what comes back, whoever carries it.

What crosses over are the canonical bytes of downloads, states and uploads, so the same bits come out as from the loop.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils._pytree import tree_flatten

from ..core import Contract, contract
from ..evaluate import Score
from ..fleet import Fleet
from ..rounds import AnyMethod, Job, Lost, Outcome, Rest
from ..store import MemoryStore, Store
from ..wire import OWN, decode, encode, received
from .inprocess import Loop, Outlet, as_made


class Order(NamedTuple):
    """A job on its way to a worker."""

    at: int  # its place among the jobs
    method: Any  # None: it travels apart
    seed: int
    job: Job  # without its download
    download: int  # which one
    data: bytes | None  # that download; None: the worker has it
    state: bytes | None  # None: the client starts


class Sent(NamedTuple):
    """First answer: the upload."""

    at: int
    upload: bytes
    before: Score | None


class Done(NamedTuple):
    """Second answer: everything else; the worker is free again."""

    at: int
    state: bytes
    after: Score | None
    lasting: bool


class Elsewhere(Loop):
    """Orders go out, the largest client first; answers are put in the order of the jobs."""

    retries = 1  # how often a client is tried again whose worker died

    def __init__(self, fleet: Fleet, store: Store, outlet: Outlet = as_made):
        super().__init__(fleet, store, outlet)
        self._types: Contract | None = None
        self._orders: deque[Order] = deque()
        self._downloads = 0  # given out so far: each has a number of its own
        self._jobs: Sequence[Job] = ()
        self._sent: dict[int, Sent] = {}
        self._done: dict[int, Done] = {}
        self._deaths: Counter[int] = Counter()  # of workers, by the places of their jobs
        self._lost: dict[int, Lost] = {}  # jobs given up

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._jobs, self._types = jobs, contract(method)
        # A job that was done twice has sent its upload twice: the second one must not be taken for a later job's.
        self._sent, self._done, self._deaths, self._lost = {}, {}, Counter(), {}
        self._orders = deque(self._by_size(method, seed, jobs))
        self._hand_out()
        for at, job in enumerate(jobs):
            while at not in self._sent and at not in self._lost:
                self._listen()
            if at not in self._sent:
                yield Outcome(job.client, self._lost[at])
                continue
            sent = self._sent.pop(at)
            yield Outcome(job.client, received(self._types.upload, sent.upload), sent.before, sent.upload)

    def rest(self) -> Iterator[Rest]:
        assert self._types is not None
        for at, job in enumerate(self._jobs):
            while at not in self._done and at not in self._lost:
                self._listen()
            if at in self._lost:
                yield Rest(job.client, self._lost[at])
                continue
            done = self._done.pop(at)
            state = decode(self._types.state, done.state, OWN)
            yield Rest(job.client, state, done.after, lasting=done.lasting)
        self._jobs = ()

    def _hand_out(self) -> None:
        """Give waiting orders to whoever is free."""
        raise NotImplementedError

    def _listen(self) -> None:
        """Wait, then take in whatever has arrived; notice workers that have died."""
        raise NotImplementedError

    def _by_size(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Order]:
        """Largest first: a large client started last would keep everybody waiting."""
        encoded: dict[Any, tuple[int, bytes]] = {}
        sizes = [self.fleet.train.size(self.fleet.position(job.client)) for job in jobs]
        for at in sorted(range(len(jobs)), key=lambda at: (-sizes[at], at)):
            job, kept = jobs[at], self.store.get(jobs[at].client)
            leaves, form = tree_flatten(job.download)
            same = form, *(id(leaf) for leaf in leaves)  # the very same tensors, in whatever wrapping
            if same not in encoded:
                encoded[same] = self._downloads, encode(job.download)
                self._downloads += 1
            state = None if kept is None else encode(kept)
            yield Order(at, method, seed, job._replace(download=None), *encoded[same], state)

    def _mourn(self, lost: Order, reason: str) -> None:
        """A worker died: its client comes next in line, or is given up for this exchange.

        Jobs are pure, so nothing is counted twice.
        """
        self._deaths[lost.at] += 1
        if self._deaths[lost.at] > self.retries:
            self._lost[lost.at] = Lost(reason)
        else:
            self._orders.appendleft(lost)


def carry_out(fleet: Fleet, outlet: Outlet, order: Order, download: Any) -> Iterator[Sent | Done]:
    """Where the client runs: the upload as soon as it is there, then the rest."""
    types, store = contract(order.method), MemoryStore()
    if order.state is not None:
        store.put(order.job.client, decode(types.state, order.state, OWN))
    loop = Loop(fleet, store, outlet)
    (outcome,) = loop.train(order.method, order.seed, [order.job._replace(download=download)])
    yield Sent(order.at, encode(outcome.upload), outcome.before)
    (rest,) = loop.rest()
    yield Done(order.at, encode(rest.state), rest.after, rest.lasting)
