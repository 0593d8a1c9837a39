"""Worker processes: clients train side by side, and personal training goes on while the server aggregates.

Workers are forked, so they share the data with their parent. What crosses over are the canonical bytes of downloads,
states and uploads; the same bits come out as from the loop. A download that many clients get goes to each worker once.
The pipes pickle what is around these bytes: both ends are this program, and nothing that came from elsewhere is
unpickled.
"""

import contextlib
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from ..core import Contract, contract
from ..evaluate import Score
from ..fleet import Fleet
from ..rounds import AnyMethod, Job, Lost, Outcome, Rest
from ..store import MemoryStore, Store
from ..threads import kept_memory
from ..wire import OWN, decode, encode, received
from .inprocess import Loop, Outlet, as_made


class Order(NamedTuple):
    """A job on its way to a worker."""

    at: int  # its place among the jobs
    method: AnyMethod
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


class Failed(NamedTuple):
    at: int
    error: BaseException


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    order: Order | None = None  # what it is working on
    download: int = -1  # the one it has


class Processes(Loop):
    """Persistent workers, one thread each; whoever is free takes the largest client that is left."""

    def __init__(self, fleet: Fleet, store: Store, workers: int, outlet: Outlet = as_made):
        super().__init__(fleet, store, outlet)
        self._workers = [_start(fleet, outlet) for _ in range(workers)]
        self._types: Contract | None = None
        self._orders: deque[Order] = deque()
        self._downloads = 0  # given out so far: each has a number of its own
        self._jobs: Sequence[Job] = ()
        self._sent: dict[int, Sent] = {}
        self._done: dict[int, Done] = {}
        self._retried: set[int] = set()  # places of jobs whose worker died once
        self._lost: dict[int, Lost] = {}  # and twice

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._jobs, self._types = jobs, contract(method)
        # A job that was done twice has sent its upload twice: the second one must not be taken for a later job's.
        self._sent, self._done, self._retried, self._lost = {}, {}, set(), {}
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
            yield Rest(job.client, decode(self._types.state, done.state, OWN), done.after)
        self._jobs = ()

    def close(self) -> None:
        """Whoever still works does so for nobody: jobs are pure, so it can be ended at any moment."""
        for worker in self._workers:
            if worker.order is not None:
                worker.process.kill()
            else:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(timeout=1)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

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

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.order is None and self._orders:
                worker.order = order = self._orders.popleft()
                worker.pipe.send(order._replace(data=None) if worker.download == order.download else order)
                worker.download = order.download

    def _listen(self) -> None:
        """Take in whatever has arrived; notice workers that have died."""
        ready = wait([w.pipe for w in self._workers] + [w.process.sentinel for w in self._workers])
        for at, worker in enumerate(self._workers):
            if worker.pipe in ready:
                try:
                    self._take(worker, worker.pipe.recv())
                except (EOFError, ConnectionResetError):
                    self._replace(at)
            elif worker.process.sentinel in ready:
                self._replace(at)

    def _take(self, worker: Worker, answer: Sent | Done | Failed) -> None:
        if isinstance(answer, Failed):
            raise answer.error
        if isinstance(answer, Sent):
            self._sent[answer.at] = answer
        else:
            self._done[answer.at] = answer
            worker.order = None
            self._hand_out()

    def _replace(self, at: int) -> None:
        """A worker died: its client is tried once more, on a new one, and is then given up for this exchange.

        Jobs are pure, so nothing is counted twice.
        """
        worker = self._workers[at]
        worker.process.join()
        worker.pipe.close()
        lost = worker.order
        self._workers[at] = _start(self.fleet, self.outlet)
        if lost is None:
            return
        if lost.at in self._retried:
            self._lost[lost.at] = Lost(
                f"its worker process died twice (exit code {worker.process.exitcode}); "
                "it may need more memory: use fewer --workers, or --backend loop"
            )
        else:
            self._retried.add(lost.at)
            self._orders.appendleft(lost)
        self._hand_out()


def _start(fleet: Fleet, outlet: Outlet) -> Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(fleet, outlet, theirs, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def _work(fleet: Fleet, outlet: Outlet, pipe: Connection, parent: int) -> None:
    """The life of a worker: one order after the other, until it is told to stop or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent has its own way to end
    torch.set_num_threads(1)
    with kept_memory():
        _obey(fleet, outlet, pipe, parent)


def _obey(fleet: Fleet, outlet: Outlet, pipe: Connection, parent: int) -> None:
    download: Any = None
    while True:
        # The end of the pipe would not tell that the parent is gone: workers forked later hold it open too.
        while not pipe.poll(1):
            if os.getppid() != parent:
                return
        order: Order | None = pipe.recv()
        if order is None:
            return
        try:
            if order.data is not None:
                download = decode(contract(order.method).download, order.data)
            _carry_out(fleet, outlet, order, download, pipe)
        except Exception as error:  # it must reach the parent, whatever it is
            pipe.send(Failed(order.at, error))


def _carry_out(fleet: Fleet, outlet: Outlet, order: Order, download: Any, pipe: Connection) -> None:
    types, store = contract(order.method), MemoryStore()
    if order.state is not None:
        store.put(order.job.client, decode(types.state, order.state, OWN))
    loop = Loop(fleet, store, outlet)
    (outcome,) = loop.train(order.method, order.seed, [order.job._replace(download=download)])
    pipe.send(Sent(order.at, encode(outcome.upload), outcome.before))
    (rest,) = loop.rest()
    pipe.send(Done(order.at, encode(rest.state), rest.after))
