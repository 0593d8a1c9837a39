"""Run clients one after the other in the current process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..clients import method_calls
from ..clients.evaluation import Score, measure, predict
from ..clients.failures import CLIENT_ERRORS, failure_of
from ..clients.measured_model import STATE, ModelSource, describe_model
from ..clients.model_store import ModelStore
from ..clients.participation import take_part
from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, UploadFilter, no_filter
from ..clients.validation.checks import find_form_error
from ..core.client import Client
from ..core.contract import contract, exchanges_of
from ..core.hooks import TrainsAfterUpload
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.payloads import Payload
from ..core.prng import Key, key
from ..core.serialization import Unreadable
from ..errors import AtollError
from ..typing import ClientId


class LoopBackend:
    """Run one client after the other. All other backends must give the same results.

    Args:
        pool: the clients with their data and models.
        store: states of clients.
        upload_filter: applied to every upload before it leaves the client.
        isolate: let an error of a client's code take the place of its upload, in place of raising it.
        models: keeps the personal models that are scored; None keeps none.
    """

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        upload_filter: UploadFilter = no_filter,
        isolate: bool = False,
        models: ModelStore | None = None,
    ):
        self.pool = pool
        self.store = store
        self.upload_filter = upload_filter
        self.models = models
        self._isolate = isolate
        self._results: list[
            ClientResult | Callable[[], ClientResult]
        ] = []  # finished, or functions that finish the work

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        """Train clients, and yield their uploads in the order of the jobs."""
        self._results = []
        for job in jobs:
            yield self._take_part(method, seed, job)

    def results(self) -> Iterator[ClientResult]:
        """Yield new states and scores, and run the training that follows the uploads first."""
        for result in self._results:
            yield result() if callable(result) else result
        self._results = []

    def commit(self, results: ClientResult) -> None:
        """Store the new state of a client whose upload was accepted."""
        if self.models is not None:
            self.models.put(results.sender, results.model)
        self.store.put(results.sender, results.state)

    def close(self) -> None:
        """Do nothing: a loop holds no resources."""

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """Return the stored state of client ``i``, or its first state."""
        return self._state_from(self.store.get(i), method, seed, i)

    def _state_from(self, kept: Any, method: AnyMethod, seed: int, i: ClientId) -> Any:
        return method_calls.init_client(method, self.pool.client(i), key(seed, "init", i)) if kept is None else kept

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Payload) -> Score:
        """Evaluate the personal model of client ``i`` without training."""
        state, client = self.state(method, seed, i), self.pool.client(i)
        return self.evaluate(method_calls.personal_predictor(method, download, None, state, client), i)

    def evaluate(self, predictor: Predictor, i: ClientId, thorough: bool = True) -> Score:
        """Evaluate a predictor on the test and validation rows of client ``i``.

        Args:
            predictor: function from rows to outputs.
            i: the client.
            thorough: compute all metrics on the test rows, otherwise the criterion alone.
        """
        at = self.pool.position(i)
        test, val = self.pool.test[at], self.pool.val[at]
        problem, outputs = self.pool.problem, predict(predictor, test.x)
        if thorough:
            score = measure(problem, outputs, test.y, self.pool.metrics)
        else:
            score = {"n": float(len(test.y)), problem.criterion.name: problem.score(outputs, test.y)}
        score["val"] = problem.score(predict(predictor, val.x), val.y) if len(val.y) else float("nan")
        if self.pool.global_test:
            union = self.pool.test.all
            score["global"] = problem.score(predict(predictor, union.x), union.y)
        return score

    def _take_part(self, method: AnyMethod, seed: int, job: ClientTask) -> ClientUpload:
        """Run a client's work up to its upload, which an error of the client's code replaces."""
        kept = self.store.get(job.client)  # An error in reading a file is none of the client's code.
        if not self._isolate:
            return self._work(method, seed, job, kept)
        try:
            return self._work(method, seed, job, kept)
        except CLIENT_ERRORS as error:
            return ClientUpload(job.client, failure_of(error))

    def _work(self, method: AnyMethod, seed: int, job: ClientTask, kept: Any) -> ClientUpload:
        client, state = self.pool.client(job.client), self._state_from(kept, method, seed, job.client)
        before, k = self._before(method, job, state, client), job_key(seed, job)
        part = take_part(method, job.round, job.download, state, client, k, job.budget)
        kind = contract(method).exchanges[job.round.exchange].upload
        if error := find_form_error(part.upload, kind):
            return ClientUpload(job.client, Unreadable(error.reason, error.field))

        def finish() -> ClientResult:
            result = self._result(method, job, part.upload, _checked_state(method, part.finish()), client)
            return result._replace(loss=part.losses.read())

        def finish_later() -> ClientResult:
            try:
                return finish()
            except CLIENT_ERRORS as error:
                if not self._isolate:
                    raise
                return ClientResult(job.client, failure_of(error))

        # Defer training that may overlap with aggregation. Finish other work now, so that the upload can be freed.
        result = finish_later if isinstance(method, TrainsAfterUpload) else finish()
        sent = self.upload_filter(job, client, part.upload)
        self._results.append(result)
        return ClientUpload(job.client, sent, before)

    def _before(self, method: AnyMethod, job: ClientTask, state: Payload, client: Client) -> Score | None:
        if not job.evaluate or job.round.exchange > 0:
            return None
        if job.known is not None and _is_lasting(method, ModelSource(job.download, None, state, client)):
            return {name: v for name, v in job.known.items() if name not in self.pool.problem.details}
        return self.evaluate(
            method_calls.personal_predictor(method, job.download, None, state, client), job.client, thorough=False
        )

    def _result(
        self,
        method: AnyMethod,
        job: ClientTask,
        up: Payload,
        state: Payload,
        client: Client,
        not_finite: bool | None = None,
    ) -> ClientResult:
        """Return the new state, with the score of the trained model if the job requests one."""
        if not job.evaluate or job.round.exchange < len(exchanges_of(method)) - 1:
            return ClientResult(job.client, state, None, not_finite)
        source = ModelSource(job.download, up, state, client)
        score = self.evaluate(method_calls.personal_predictor(method, *source), job.client)
        model = None if self.models is None else self.models.describe(method, source)
        lasting = _is_lasting(method, source) if model is None else model.kind == STATE
        return ClientResult(job.client, state, score, not_finite, model, lasting)


def _checked_state(method: AnyMethod, state: Payload) -> Payload:
    """Return a client's state if it can be stored and sent.

    Raises:
        AtollError: a field holds something else than the method declares.
    """
    if error := find_form_error(state, contract(method).state):
        raise AtollError(f"The state that {type(method).__name__} keeps at a client: {error.field} {error.reason}.")
    return state


def _is_lasting(method: AnyMethod, source: ModelSource) -> bool:
    """Return True if the personal model is stored in the client's state, so that no download can change it."""
    return describe_model(method, source).kind == STATE


def job_key(seed: int, job: ClientTask) -> Key:
    """Return the key of a client's work in one round. All exchanges of the round share it: fold it for each use."""
    return key(*round_key_parts(seed, job), job.client)


def round_key_parts(seed: int, job: ClientTask) -> tuple[int | str, ...]:
    """Return the parts that the keys of all clients of a round have in common."""
    return seed, "local", job.round.t
