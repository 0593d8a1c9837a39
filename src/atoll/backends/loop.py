"""Run clients one after the other in this process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..clients import method_calls
from ..clients.evaluation import DETAILS, Score, accuracy, measure, predict
from ..clients.participation import take_part
from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, UploadFilter, no_filter
from ..core.client import Client
from ..core.method import AnyMethod, Method
from ..core.model import Predictor
from ..core.prng import Key, key
from ..core.schema import tensors_of
from ..typing import ClientId


class LoopBackend:
    """One client after the other: the reference that every other backend must equal."""

    def __init__(self, pool: ClientPool, store: Store, upload_filter: UploadFilter = no_filter):
        self.pool, self.store, self.upload_filter = pool, store, upload_filter
        self._results: list[ClientResult | Callable[[], ClientResult]] = []  # done, or still to be done

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        self._results = []
        for job in jobs:
            yield self._participate(method, seed, job)

    def results(self) -> Iterator[ClientResult]:
        for results in self._results:
            yield results() if callable(results) else results
        self._results = []

    def commit(self, results: ClientResult) -> None:
        self.store.put(results.sender, results.state)

    def close(self) -> None:
        """Nothing to give back."""

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """What client ``i`` kept, or what it starts with."""
        kept = self.store.get(i)
        return method_calls.init_client(method, self.pool.client(i), key(seed, "init", i)) if kept is None else kept

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Any) -> Score:
        state, client = self.state(method, seed, i), self.pool.client(i)
        return self.evaluate(method.personal(download, None, state, client), i)

    def evaluate(self, predictor: Predictor, i: ClientId, thorough: bool = True) -> Score:
        """The exam of client ``i``: its test rows (all measures, or accuracy alone), its validation rows."""
        at = self.pool.position(i)
        test, val = self.pool.test[at], self.pool.val[at]
        logits = predict(predictor, test.x)
        brief = {"n": float(len(test.y)), "accuracy": accuracy(logits, test.y)}
        score = measure(logits, test.y, self.pool.metrics) if thorough else brief
        score["val"] = accuracy(predict(predictor, val.x), val.y) if len(val.y) else float("nan")
        if self.pool.global_test:
            everybody = self.pool.test.all
            score["global"] = accuracy(predict(predictor, everybody.x), everybody.y)
        return score

    def _participate(self, method: AnyMethod, seed: int, job: ClientTask) -> ClientUpload:
        client, state = self.pool.client(job.client), self.state(method, seed, job.client)
        before, k = self._before(method, job, state, client), job_key(seed, job)
        part = take_part(method, job.download, state, client, k)

        def finish() -> ClientResult:
            return self._result(method, job, part.upload, part.finish(), client)

        # Put off what may overlap with aggregation; do the rest now, so that nothing holds on to the upload.
        self._results.append(finish if method.after_upload else finish())
        return ClientUpload(job.client, self.upload_filter(job, client, part.upload), before)

    def _before(self, method: AnyMethod, job: ClientTask, state: Any, client: Client) -> Score | None:
        if not job.evaluate or job.round.phase > 0:
            return None
        if job.known is not None and _lasts(method, job, None, state, client):
            return {name: v for name, v in job.known.items() if name not in DETAILS}
        return self.evaluate(method.personal(job.download, None, state, client), job.client, thorough=False)

    def _result(
        self, method: AnyMethod, job: ClientTask, up: Any, state: Any, client: Client, spoilt: bool | None = None
    ) -> ClientResult:
        """With the score of the trained model, if asked for."""
        if not job.evaluate or job.round.phase < method.phases - 1:
            return ClientResult(job.client, state, None, spoilt)
        score = self.evaluate(method.personal(job.download, up, state, client), job.client)
        return ClientResult(job.client, state, score, spoilt, _lasts(method, job, up, state, client))


def _lasts(method: AnyMethod, job: ClientTask, up: Any, state: Any, client: Client) -> bool:
    """Whether the client predicts by a model that is in its state, so that nothing it receives can change it."""
    if type(method).personal is not Method.personal:
        return False
    own, kept = method.own(job.download, up, state, client), {id(v) for v in tensors_of(state).values()}
    return bool(own) and all(id(v) in kept for v in own.values())


def job_key(seed: int, job: ClientTask) -> Key:
    """The key of a client's work in one round: the same in all its exchanges, so a method folds it for each use."""
    return key(*_use(seed, job), job.client)


def _use(seed: int, job: ClientTask) -> tuple[int | str, ...]:
    return seed, "local", job.round.t
