"""Run clients in worker processes, which continue personal training while the server aggregates.

Workers are forked and share the data with the parent. A download for many clients is sent to each worker once. The work
of all clients up to their uploads comes before any training after an upload, so that the server never waits for the
personal training of one client to receive the upload of another.
"""

import contextlib
import os
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from ..clients.model_store import ModelStore
from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import UploadFilter, no_filter
from ..core.hooks import TrainsAfterUpload
from ..core.payloads import Payload
from ..utils.runtime import kept_memory
from .remote import RemoteBackend, UploadReady, WorkDone, WorkItem, run_work_item
from .shared_memory import SharedMemoryPipe, shared_memory_pipe


class WorkFailed(NamedTuple):
    """Report an exception of a worker to the parent."""

    at: int
    error: BaseException


class FinishWork(NamedTuple):
    """Tell a worker to do the training after the upload of all clients whose uploads it has sent."""


@dataclass
class Worker:
    """A worker process, as the parent sees it."""

    process: BaseProcess
    line: SharedMemoryPipe
    order: WorkItem | None = None  # the current work up to an upload
    unfinished: list[WorkItem] = field(default_factory=list)  # work with an upload that has more to do, in order
    finishing: bool = False  # whether the worker does that now
    download: int = -1  # number of the last download that was sent

    @property
    def is_busy(self) -> bool:
        return self.order is not None or self.finishing


class ProcessBackend(RemoteBackend):
    """Run clients in persistent worker processes with one thread each.

    A free worker takes the largest client that is left.

    Args:
        pool: the clients with their data and models.
        store: states of clients.
        workers: number of processes.
        upload_filter: applied to every upload before it leaves the client.
        fingerprints: compute fingerprints of uploads in the workers.
        models: keeps the personal models that are scored; None keeps none.
    """

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        workers: int,
        upload_filter: UploadFilter = no_filter,
        fingerprints: bool = False,
        models: ModelStore | None = None,
    ):
        super().__init__(pool, store, upload_filter, fingerprints, models)
        self._workers = [_start(pool, upload_filter) for _ in range(workers)]

    def close(self) -> None:
        """Stop all workers. Busy workers are killed: their results are not needed, and jobs have no side effects."""
        for worker in self._workers:
            if worker.is_busy:
                worker.process.kill()
            else:
                with contextlib.suppress(OSError):
                    worker.line.send(None)
        for worker in self._workers:
            worker.process.join(timeout=1)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.line.close()

    def _dispatch(self) -> None:
        for worker in self._workers:
            if worker.is_busy:
                continue
            if self._orders:
                worker.order = order = self._orders.popleft()
                worker.line.send(order._replace(data=None) if worker.download == order.download else order)
                worker.download = order.download
            elif worker.unfinished:
                worker.finishing = True
                worker.line.send(FinishWork())

    def _collect(self) -> None:
        ready = wait([w.line.pipe for w in self._workers] + [w.process.sentinel for w in self._workers])
        for at, worker in enumerate(self._workers):
            if worker.line.pipe in ready:
                try:
                    self._take(worker, worker.line.receive())
                except (EOFError, ConnectionResetError):
                    self._replace(at)
            elif worker.process.sentinel in ready:
                self._replace(at)

    def _take(self, worker: Worker, answer: UploadReady | WorkDone | WorkFailed) -> None:
        if isinstance(answer, WorkFailed):
            raise answer.error
        if isinstance(answer, UploadReady):
            self._sent[answer.at] = answer
            if worker.order and isinstance(worker.order.method, TrainsAfterUpload):
                worker.unfinished.append(worker.order)
                worker.order = None
        else:
            self._done[answer.at] = answer
            worker.order = None
            worker.unfinished = [order for order in worker.unfinished if order.at != answer.at]
            worker.finishing = bool(worker.finishing and worker.unfinished)
        self._dispatch()

    def _replace(self, at: int) -> None:
        worker = self._workers[at]
        worker.process.join()
        worker.line.close()
        self._workers[at] = _start(self.pool, self.upload_filter)
        under_way, innocent = worker.order, worker.unfinished
        if worker.finishing:
            under_way, *innocent = worker.unfinished
        self._orders.extendleft(reversed(innocent))  # to be done again, because their results died with the worker
        if under_way:
            self._requeue(
                under_way,
                f"its worker process died twice (exit code {worker.process.exitcode}); "
                "it may need more memory: use fewer --workers, or --backend loop",
            )
        self._dispatch()


def _start(pool: ClientPool, upload_filter: UploadFilter) -> Worker:
    ours, theirs = shared_memory_pipe()
    process = get_context("fork").Process(target=_work, args=(pool, upload_filter, theirs, os.getpid()), daemon=True)
    process.start()
    theirs.pipe.close()
    return Worker(process, ours)


def _work(pool: ClientPool, upload_filter: UploadFilter, parent_pipe: SharedMemoryPipe, parent: int) -> None:
    """Run work items in a worker process until the parent sends None or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C and then closes its workers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # The parent's handler is not meant for workers.
    torch.set_num_threads(1)
    with kept_memory():
        _run_work_items(pool, upload_filter, parent_pipe, parent)


def _run_work_items(pool: ClientPool, upload_filter: UploadFilter, parent_pipe: SharedMemoryPipe, parent: int) -> None:
    download: Payload | None = None
    unfinished: deque[tuple[int, Iterator[UploadReady | WorkDone]]] = deque()
    while True:
        # A dead parent does not close the pipe, because workers forked later hold it open too.
        while not parent_pipe.pipe.poll(1):
            if os.getppid() != parent:
                return
        order: WorkItem | FinishWork | None = parent_pipe.receive()
        if order is None:
            return
        if isinstance(order, FinishWork):
            while unfinished:
                _send_answers(parent_pipe, *unfinished.popleft())
            continue
        download = download if order.data is None else order.data
        answers = run_work_item(pool, upload_filter, order, download)
        _send_answers(parent_pipe, order.at, islice(answers, 1))
        if isinstance(order.method, TrainsAfterUpload):
            unfinished.append((order.at, answers))
        else:
            _send_answers(parent_pipe, order.at, answers)


def _send_answers(parent_pipe: SharedMemoryPipe, at: int, answers: Iterator[UploadReady | WorkDone]) -> None:
    """Send the answers to a work item, each as soon as it exists; the parent raises any error of a client."""
    try:
        for answer in answers:
            parent_pipe.send(answer)
    except Exception as error:
        parent_pipe.send(WorkFailed(at, error))
