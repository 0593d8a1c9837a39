"""Worker processes: clients train side by side, and personal training goes on while the server aggregates.

Workers are forked, so they share the data with their parent. A download that many clients get goes to each worker once.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import UploadFilter, no_filter
from ..utils.runtime import kept_memory
from .remote import RemoteBackend, UploadReady, WorkDone, WorkItem, run_work_item
from .shared_memory import SharedMemoryPipe, shared_memory_pipe


class Failed(NamedTuple):
    at: int
    error: BaseException


@dataclass
class Worker:
    process: BaseProcess
    line: SharedMemoryPipe
    order: WorkItem | None = None  # what it is working on
    download: int = -1  # the one it has


class ProcessBackend(RemoteBackend):
    """Persistent workers, one thread each; whoever is free takes the largest client that is left."""

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        workers: int,
        upload_filter: UploadFilter = no_filter,
        fingerprints: bool = False,
    ):
        super().__init__(pool, store, upload_filter, fingerprints)
        self._workers = [_start(pool, upload_filter) for _ in range(workers)]

    def close(self) -> None:
        """Whoever still works does so for nobody: jobs are pure, so it can be ended at any moment."""
        for worker in self._workers:
            if worker.order:
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
            if not worker.order and self._orders:
                worker.order = order = self._orders.popleft()
                worker.line.send(order._replace(data=None) if worker.download == order.download else order)
                worker.download = order.download

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

    def _take(self, worker: Worker, answer: UploadReady | WorkDone | Failed) -> None:
        if isinstance(answer, Failed):
            raise answer.error
        if isinstance(answer, UploadReady):
            self._sent[answer.at] = answer
        else:
            self._done[answer.at] = answer
            worker.order = None
            self._dispatch()

    def _replace(self, at: int) -> None:
        worker = self._workers[at]
        worker.process.join()
        worker.line.close()
        self._workers[at] = _start(self.pool, self.upload_filter)
        if worker.order:
            self._requeue(
                worker.order,
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
    """The life of a worker: one order after the other, until it is told to stop or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent has its own way to end
    torch.set_num_threads(1)
    with kept_memory():
        _obey(pool, upload_filter, parent_pipe, parent)


def _obey(pool: ClientPool, upload_filter: UploadFilter, parent_pipe: SharedMemoryPipe, parent: int) -> None:
    download: Any = None
    while True:
        # The end of the pipe would not tell that the parent is gone: workers forked later hold it open too.
        while not parent_pipe.pipe.poll(1):
            if os.getppid() != parent:
                return
        order: WorkItem | None = parent_pipe.receive()
        if order is None:
            return
        try:
            download = download if order.data is None else order.data
            for answer in run_work_item(pool, upload_filter, order, download):
                parent_pipe.send(answer)
        except Exception as error:  # it must reach the parent, whatever it is
            parent_pipe.send(Failed(order.at, error))
