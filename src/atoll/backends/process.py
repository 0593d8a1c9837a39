"""Worker processes: clients train side by side, and personal training goes on while the server aggregates.

Workers are forked, so they share the data with their parent. A download that many clients get goes to each worker once.
The pipes pickle what is around the bytes that cross over: both ends are this program, and nothing that came from
elsewhere is unpickled.
"""

import contextlib
import os
import signal
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from ..core import contract
from ..fleet import Fleet
from ..store import Store
from ..threads import kept_memory
from ..wire import OWN, decode
from .elsewhere import Done, Elsewhere, Order, Sent, carry_out
from .inprocess import Outlet, as_made

SLIM = 2**14  # bytes of a state that surely fit into a pipe


class Failed(NamedTuple):
    at: int
    error: BaseException


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    orders: deque[Order] = field(default_factory=deque)  # what it is working on, and what comes next
    download: int = -1  # the one it has


class Processes(Elsewhere):
    """Persistent workers, one thread each; whoever is free takes the largest client that is left."""

    def __init__(self, fleet: Fleet, store: Store, workers: int, outlet: Outlet = as_made):
        super().__init__(fleet, store, outlet)
        self._workers = [_start(fleet, outlet) for _ in range(workers)]

    def close(self) -> None:
        """Whoever still works does so for nobody: jobs are pure, so it can be ended at any moment."""
        for worker in self._workers:
            if worker.orders:
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

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not worker.orders and self._orders:
                self._give(worker)
        # One order ahead, so that nobody waits for us; but the last ones are for whoever is free first.
        for worker in self._workers:
            if len(worker.orders) == 1 and len(self._orders) >= len(self._workers) and self._is_slim(worker):
                self._give(worker)

    def _give(self, worker: Worker) -> None:
        order = self._orders.popleft()
        worker.orders.append(order)
        worker.pipe.send(order._replace(data=None) if worker.download == order.download else order)
        worker.download = order.download

    def _is_slim(self, worker: Worker) -> bool:
        """Whether the pipe has room for the next order: who is busy does not read, and we must not wait for it."""
        order = self._orders[0]
        return worker.download == order.download and len(order.state or b"") <= SLIM

    def _listen(self) -> None:
        ready = wait([w.pipe for w in self._workers] + [w.process.sentinel for w in self._workers])
        for at, worker in enumerate(self._workers):
            if worker.pipe in ready:
                try:
                    self._take(worker, _received(worker.pipe))
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
            worker.orders.popleft()
            self._hand_out()

    def _replace(self, at: int) -> None:
        worker = self._workers[at]
        worker.process.join()
        worker.pipe.close()
        self._workers[at] = _start(self.fleet, self.outlet)
        if worker.orders:
            lost = worker.orders.popleft()
            self._orders.extendleft(reversed(worker.orders))
            self._mourn(
                lost,
                f"its worker process died twice (exit code {worker.process.exitcode}); "
                "it may need more memory: use fewer --workers, or --backend loop",
            )
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
                download = decode(contract(order.method).download, order.data, OWN)
            for answer in carry_out(fleet, outlet, order, download):
                _send(pipe, answer)
        except Exception as error:  # it must reach the parent, whatever it is
            pipe.send(Failed(order.at, error))


def _send(pipe: Connection, answer: Sent | Done) -> None:
    """The payload goes by itself: pickled, it would be copied twice more."""
    if isinstance(answer, Sent):
        pipe.send(answer._replace(upload=b""))
        pipe.send_bytes(answer.upload)
    else:
        pipe.send(answer._replace(state=b""))
        pipe.send_bytes(answer.state)


def _received(pipe: Connection) -> Sent | Done | Failed:
    answer: Sent | Done | Failed = pipe.recv()
    if isinstance(answer, Sent):
        return answer._replace(upload=pipe.recv_bytes())
    return answer._replace(state=pipe.recv_bytes()) if isinstance(answer, Done) else answer
