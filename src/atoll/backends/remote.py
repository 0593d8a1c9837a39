"""Clients in other processes: what goes to them and what comes back, whoever carries it and however."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..clients.evaluation import Score
from ..clients.fingerprints import Fingerprint, fingerprint_upload
from ..clients.pool import ClientPool
from ..clients.state_store import MemoryStore, Store
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, LostClient, UploadFilter, no_filter
from ..core.method import AnyMethod
from ..core.schema import static_form, tensors_of
from .loop import LoopBackend


class WorkItem(NamedTuple):
    """A job on its way to a worker."""

    at: int  # its place among the jobs
    method: Any  # None: it travels apart
    seed: int
    job: ClientTask  # without its download
    download: int  # which one
    data: Any  # that download; None: the worker has it
    state: Any  # None: the client starts
    fingerprint: bool  # whether that of the upload is asked for


class UploadReady(NamedTuple):
    """First answer: the upload."""

    at: int
    upload: Any
    before: Score | None
    fingerprint: Fingerprint | None


class WorkDone(NamedTuple):
    """Second answer: everything else; the worker is free again."""

    at: int
    state: Any
    after: Score | None
    lasting: bool


class RemoteBackend(LoopBackend):
    """Orders go out, the largest client first; answers are put in the order of the jobs."""

    retries = 1  # how often a client is tried again whose worker died

    def __init__(
        self, pool: ClientPool, store: Store, upload_filter: UploadFilter = no_filter, fingerprints: bool = False
    ):
        super().__init__(pool, store, upload_filter)
        self._fingerprints = fingerprints  # whether those of uploads are taken where they are made, so that we need not
        self._orders: deque[WorkItem] = deque()
        self._downloads = 0  # given out so far: each has a number of its own
        self._jobs: Sequence[ClientTask] = ()
        self._sent: dict[int, UploadReady] = {}
        self._done: dict[int, WorkDone] = {}
        self._deaths: Counter[int] = Counter()  # of workers, by the places of their jobs
        self._lost: dict[int, LostClient] = {}  # jobs given up

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        self._jobs = jobs
        # A job that was done twice has sent its upload twice: the second one must not be taken for a later job's.
        self._sent, self._done, self._deaths, self._lost = {}, {}, Counter(), {}
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
        for at, job in enumerate(self._jobs):
            while at not in self._done and at not in self._lost:
                self._collect()
            if at in self._lost:
                yield ClientResult(job.client, self._lost[at])
                continue
            done = self._done.pop(at)
            yield ClientResult(job.client, done.state, done.after, lasting=done.lasting)
        self._jobs = ()

    def _dispatch(self) -> None:
        """Give waiting orders to whoever is free."""
        raise NotImplementedError

    def _collect(self) -> None:
        """Wait, then take in whatever has arrived; notice workers that have died."""
        raise NotImplementedError

    def _by_size(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[WorkItem]:
        """Largest first: a large client started last would keep everybody waiting."""
        numbers: dict[Any, int] = {}
        sizes = [self.pool.train.size(self.pool.position(job.client)) for job in jobs]
        for at in sorted(range(len(jobs)), key=lambda at: (-sizes[at], at)):
            job, state = jobs[at], self.store.get(jobs[at].client)
            tensors = tensors_of(job.download).values()
            same = static_form(job.download), *map(id, tensors)  # the very same tensors, in whatever payload
            if same not in numbers:
                numbers[same] = self._downloads
                self._downloads += 1
            slim = job._replace(download=None)
            yield WorkItem(at, method, seed, slim, numbers[same], job.download, state, self._fingerprints)

    def _requeue(self, lost: WorkItem, reason: str) -> None:
        """A worker died: its client comes next in line, or is given up for this exchange.

        Jobs are pure, so nothing is counted twice.
        """
        self._deaths[lost.at] += 1
        if self._deaths[lost.at] > self.retries:
            self._lost[lost.at] = LostClient(reason)
        else:
            self._orders.appendleft(lost)


def run_work_item(
    pool: ClientPool, upload_filter: UploadFilter, order: WorkItem, download: Any
) -> Iterator[UploadReady | WorkDone]:
    """Where the client runs: the upload as soon as it is there, then the rest."""
    store = MemoryStore()
    if order.state is not None:
        store.put(order.job.client, order.state)
    loop = LoopBackend(pool, store, upload_filter)
    (outcome,) = loop.train(order.method, order.seed, [order.job._replace(download=download)])
    yield UploadReady(
        order.at, outcome.upload, outcome.before, _fingerprint(outcome.upload) if order.fingerprint else None
    )
    (results,) = loop.results()
    yield WorkDone(order.at, results.state, results.after, results.lasting)


def _fingerprint(upload: Any) -> Fingerprint | None:
    try:
        return fingerprint_upload(upload)
    except Exception:  # it is no payload, which the server will see for itself
        return None
