"""Run clients one after the other in the current process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..clients import method_calls
from ..clients.evaluation import Score, measure, predict
from ..clients.failures import CLIENT_ERRORS, failure_of
from ..clients.group_evaluation import evaluate_models
from ..clients.measured_model import STATE, ModelSource, is_in_state
from ..clients.model_store import ModelStore
from ..clients.participation import take_part
from ..clients.pool import ClientPool
from ..clients.score_table import ClientModel, PendingScore, to_columns
from ..clients.state_store import Store
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, UploadFilter, no_filter
from ..clients.validation.checks import find_form_error
from ..core.client import Client
from ..core.contract import contract, exchanges_of
from ..core.group_scores import Columns
from ..core.hooks import PredictsOtherwise, TrainsAfterUpload
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.payloads import Nothing, Payload
from ..core.prng import Key, key
from ..core.serialization import Unreadable
from ..errors import AtollError
from ..typing import ClientId

NOTHING = Nothing()  # the state of every client of a method without client state


class LoopBackend:
    """Run one client after the other. All other backends must give the same results.

    Attributes:
        batches_models: whether different models of one architecture are evaluated in batched passes.

    Args:
        pool: the clients with their data and models.
        store: states of clients.
        upload_filter: applied to every upload before it leaves the client.
        isolate: let an error of a client's code take the place of its upload, in place of raising it.
        models: keeps the personal models that are scored; None keeps none.
    """

    batches_models: ClassVar[bool] = False

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
        if kept is not None:
            return kept
        if contract(method).state is Nothing:
            return NOTHING
        return method_calls.init_client(method, self.pool.client(i), key(seed, "init", i))

    def assess(self, method: AnyMethod, seed: int, downloads: Mapping[ClientId, Payload]) -> Columns:
        """Evaluate the personal models of clients without training, and keep them if models are kept."""
        sources = {
            i: ModelSource(download, None, self.state(method, seed, i), self.pool.client(i))
            for i, download in downloads.items()
        }
        if self.models is not None:
            self.models.put_untrained(method, sources)
        return self.evaluate_all(method, sources)

    def evaluate_all(
        self, method: AnyMethod, sources: Mapping[ClientId, ModelSource], thorough: bool = True
    ) -> Columns:
        """Evaluate the personal models of several clients; see :meth:`evaluate`.

        Returns:
            The scores as columns, in the order of ``sources``.
        """
        if isinstance(method, PredictsOtherwise) or self.pool.global_test:
            predictors = {i: method_calls.personal_predictor(method, *source) for i, source in sources.items()}
            return to_columns([self.evaluate(predictor, i, thorough) for i, predictor in predictors.items()])
        models = [ClientModel(i, method.personal_params(*source)) for i, source in sources.items()]
        return evaluate_models(self.pool, models, thorough=thorough, batched=self.batches_models)

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
        source = ModelSource(job.download, None, state, client)
        if (known := self._known(method, job, source)) is not None:
            return known
        return self.evaluate(method_calls.personal_predictor(method, *source), job.client, thorough=False)

    def _known(self, method: AnyMethod, job: ClientTask, source: ModelSource) -> Score | None:
        """Return the score of the client's model if it was scored before and no download can change the model."""
        if job.known is None or not is_in_state(method, source):
            return None
        return {name: v for name, v in job.known.items() if name not in self.pool.problem.details}

    def _result(
        self,
        method: AnyMethod,
        job: ClientTask,
        up: Payload,
        state: Payload,
        client: Client,
    ) -> ClientResult:
        """Return the new state, with the score of the trained model if the job requests one."""
        if not scores_result(method, job):
            return ClientResult(job.client, state)
        source = ModelSource(job.download, up, state, client)
        score = self.evaluate(method_calls.personal_predictor(method, *source), job.client)
        return self._scored_result(method, job, source, score)

    def _scored_result(
        self,
        method: AnyMethod,
        job: ClientTask,
        source: ModelSource,
        score: Score | PendingScore,
        not_finite: bool | None = None,
    ) -> ClientResult:
        """Return the new state with the score of the trained model, which is kept if models are kept."""
        model = None if self.models is None else self.models.describe(method, source)
        lasting = is_in_state(method, source) if model is None else model.kind == STATE
        return ClientResult(job.client, source.state, score, not_finite, model, lasting)


def scores_result(method: AnyMethod, job: ClientTask) -> bool:
    """Return True if the trained model is to be scored: in the last exchange of a round."""
    return job.evaluate and job.round.exchange == len(exchanges_of(method)) - 1


def _checked_state(method: AnyMethod, state: Payload) -> Payload:
    """Return a client's state if it can be stored and sent.

    Raises:
        AtollError: a field holds something else than the method declares.
    """
    if error := find_form_error(state, contract(method).state):
        raise AtollError(f"The state that {type(method).__name__} keeps at a client: {error.field} {error.reason}.")
    return state


def job_key(seed: int, job: ClientTask) -> Key:
    """Return the key of a client's work in one round. All exchanges of the round share it: fold it for each use."""
    return key(*round_key_parts(seed, job), job.client)


def round_key_parts(seed: int, job: ClientTask) -> tuple[int | str, ...]:
    """Return the parts that the keys of all clients of a round have in common."""
    return seed, "local", job.round.t
