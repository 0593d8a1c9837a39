"""Dispatch clients to other processes and collect their answers, for all backends that do so."""

import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..clients.evaluation import Score
from ..clients.failures import ClientFailure, for_another_process
from ..clients.fingerprints import Fingerprint, fingerprint_upload
from ..clients.measured_model import MeasuredModel
from ..clients.model_store import ModelStore
from ..clients.pool import ClientPool
from ..clients.score_table import settled
from ..clients.state_store import MemoryStore, Store
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, LostClient, UploadFilter, no_filter
from ..clients.validation.checks import find_form_error
from ..core.contract import contract
from ..core.method import AnyMethod
from ..core.optim.training_loss import TrainingLoss
from ..core.schema import static_form, tensors_of
from ..core.serialization import Unreadable
from .loop import LoopBackend


class WorkItem(NamedTuple):
    """The job of one client, as it is sent to a worker."""

    at: int  # position among the jobs
    method: Any  # None if the method is sent separately
    seed: int
    job: ClientTask  # without its download
    download: int  # number of the download
    data: Any  # the download; None if the worker has it
    state: Any  # None before the client's first round
    fingerprint: bool  # whether to compute the fingerprint of the upload
    keep_model: bool  # whether to return the model that is scored


class UploadReady(NamedTuple):
    """First answer of a worker: the upload, or what took its place."""

    at: int
    upload: Any  # a payload, an Unreadable or a ClientFailure
    before: Score | None
    fingerprint: Fingerprint | None


class WorkDone(NamedTuple):
    """Second answer of a worker: the new state and score. The worker is free again."""

    at: int
    state: Any  # a payload or a ClientFailure; None if there was no upload
    after: Score | None
    model: MeasuredModel | None
    lasting: bool
    loss: TrainingLoss | None = None


class RemoteBackend(LoopBackend):
    """Run clients in worker processes. Dispatches the largest clients first and yields results in task order.

    Subclasses define how work is dispatched and how answers are collected.
    """

    retries = 1  # further attempts for a client whose worker died

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        upload_filter: UploadFilter = no_filter,
        fingerprints: bool = False,
        models: ModelStore | None = None,
    ):
        super().__init__(pool, store, upload_filter, models=models)
        self._fingerprints = fingerprints  # computed by workers, to spare the server the work
        self._orders: deque[WorkItem] = deque()
        self._downloads = 0  # number of the next download
        self._jobs: Sequence[ClientTask] = ()
        self._sent: dict[int, UploadReady] = {}
        self._done: dict[int, WorkDone] = {}
        self._deaths: Counter[int] = Counter()  # deaths of workers, by the position of the job
        self._lost: dict[int, LostClient] = {}  # jobs without further attempts

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        """Train clients, and yield their uploads in the order of the jobs."""
        self._jobs = jobs
        # A job that ran twice has sent its upload twice. Forget the second one: positions are used again.
        self._sent = {}
        self._done = {}
        self._deaths = Counter()
        self._lost = {}
        self._orders = deque(self._by_size(method, seed, jobs))
        self._dispatch()
        for at, job in enumerate(jobs):
            while at not in self._sent and at not in self._lost:
                self._collect()
            if at not in self._sent:
                yield ClientUpload(job.client, self._lost[at])
                continue
            sent = self._sent.pop(at)
            yield ClientUpload(job.client, sent.upload, sent.before, sent.fingerprint)

    def results(self) -> Iterator[ClientResult]:
        """Yield new states and scores in the order of the jobs."""
        for at, job in enumerate(self._jobs):
            while at not in self._done and at not in self._lost:
                self._collect()
            if at in self._lost:
                yield ClientResult(job.client, self._lost[at])
                continue
            done = self._done.pop(at)
            model = done.model if self.models is None or done.model is None else self.models.admit(done.model)
            yield ClientResult(job.client, done.state, done.after, model=model, lasting=done.lasting, loss=done.loss)
        self._jobs = ()

    def _dispatch(self) -> None:
        """Send waiting work items to free workers."""
        raise NotImplementedError

    def _collect(self) -> None:
        """Wait for answers, store them, and requeue the work of workers that died."""
        raise NotImplementedError

    def _by_size(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[WorkItem]:
        """Yield work items, the largest client first: a large client that starts last would delay the round."""
        numbers: dict[Any, int] = {}
        sizes = [self.pool.train.size(self.pool.position(job.client)) for job in jobs]
        for at in sorted(range(len(jobs)), key=lambda at: (-sizes[at], at)):
            job, state = jobs[at], self.store.get(jobs[at].client)
            tensors = tensors_of(job.download).values()
            same = static_form(job.download), *map(id, tensors)  # the same tensor objects, also in different payloads
            if same not in numbers:
                numbers[same] = self._downloads
                self._downloads += 1
            slim = job._replace(download=None)
            keep = self.models is not None and self.models.on
            yield WorkItem(at, method, seed, slim, numbers[same], job.download, state, self._fingerprints, keep)

    def _requeue(self, lost: WorkItem, reason: str) -> None:
        """Put the work of a dead worker first in the queue, or give its client up for this exchange.

        Jobs have no side effects, so nothing is counted twice.
        """
        self._deaths[lost.at] += 1
        if self._deaths[lost.at] > self.retries:
            self._lost[lost.at] = LostClient(reason)
        else:
            self._orders.appendleft(lost)


def run_work_item(
    pool: ClientPool, upload_filter: UploadFilter, order: WorkItem, download: Any
) -> Iterator[UploadReady | WorkDone]:
    """Run one client in a worker. Yields the upload as soon as it exists, then the new state and score.

    Args:
        pool: the clients with their data and models.
        upload_filter: applied to the upload.
        order: the job.
        download: the download of the job.
    """
    store = MemoryStore()
    if order.state is not None:
        store.put(order.job.client, order.state)
    models = ModelStore(store, contract(order.method), on=order.keep_model, room=sys.maxsize)
    loop = LoopBackend(pool, store, upload_filter, isolate=True, models=models)
    (outcome,) = loop.train(order.method, order.seed, [order.job._replace(download=download)])
    upload = _sendable(outcome.upload, order)
    is_payload = not isinstance(upload, Unreadable | ClientFailure)
    fingerprint = fingerprint_upload(upload) if order.fingerprint and is_payload else None
    yield UploadReady(order.at, upload, settled(outcome.before), fingerprint)
    for result in loop.results():
        state = _sendable_state(result.state)
        yield WorkDone(order.at, state, settled(result.after), result.model, result.lasting, result.loss)
        return
    yield WorkDone(order.at, None, None, None, False)


def _sendable(upload: Any, order: WorkItem) -> Any:
    """Return an upload that another process can receive; the filter may have changed what the method made."""
    if isinstance(upload, ClientFailure):
        return for_another_process(upload)
    error = find_form_error(upload, contract(order.method).exchanges[order.job.round.exchange].upload)
    return Unreadable(error.reason, error.field) if error else upload


def _sendable_state(state: Any) -> Any:
    return for_another_process(state) if isinstance(state, ClientFailure) else state
