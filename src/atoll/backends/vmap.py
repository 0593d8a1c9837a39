"""Run all clients of one architecture in one batched call."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import ceil
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..clients import method_calls
from ..clients.evaluation import Score
from ..clients.group_evaluation import evaluate_models
from ..clients.measured_model import ModelSource
from ..clients.score_table import ClientModel, PendingScore, to_scores
from ..clients.tasks import ClientResult, ClientTask, ClientUpload, UploadBatch, no_filter
from ..core import vmap
from ..core.client import Client
from ..core.group_scores import Columns
from ..core.hooks import PredictsOtherwise, TrainsAfterUpload
from ..core.method import AnyMethod
from ..core.optim.training_loss import LossMeter, TrainingLoss, measured_by
from ..core.payloads import Payload
from ..core.prng import keys
from ..core.schema import find_nonfinite, static_form, tensors_of
from ..core.tree import lazy_rows, map_consecutive, stack, unstack
from ..core.vmap import functional_gradients
from ..errors import AtollError
from ..typing import ClientId
from ..utils.user_code import find_user_line
from .loop import LoopBackend, round_key_parts, scores_result

T = TypeVar("T")

ROOM = 2**28  # memory for the clients of one batched call, in bytes
REMEDY = "In client functions, branch on no value of a tensor, and call neither .item() nor .numpy()."
COPIES = (
    6  # copies of a client's message and state during training: initial and new weights, gradients, momentum, results
)


class CannotBatch(AtollError):
    """Raised for a user's code that runs for one client but not under vmap.

    Attributes:
        place: the line of the user's code, and what torch says.
    """

    def __init__(self, method: AnyMethod, line: str, reason: RuntimeError):
        said = str(reason).strip().partition(". ")[0].partition("\n")[0]  # torch adds advice for its own developers
        self.place = f"{line}: {said.rstrip('.')}"
        super().__init__(
            f"--backend vmap cannot run {type(method).__name__}: {self.place}. {REMEDY} Or use --backend loop, which "
            "runs any code, client by client."
        )


class VmapBackend(LoopBackend):
    """Run clients with the same model in one batched call of ``method.local``, as many as fit into ``ROOM``."""

    batches_models = True
    _last_batch: tuple[list[ClientId], Client] | None = None  # the last batch of clients, which often runs again

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        """Train clients batch by batch, and yield their uploads in the order of the jobs."""
        self._results = []
        batches = {
            job.client: upload_batch for upload_batch in self._batches(method, seed, jobs) for job in upload_batch
        }
        ready: dict[ClientId, tuple[ClientUpload, ClientResult]] = {}
        for job in jobs:
            if job.client not in ready:
                ready |= self._train_batch(method, seed, batches[job.client])
            outcome, results = ready.pop(job.client)
            self._results.append(results)
            yield outcome

    def _batches(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[list[ClientTask]]:
        """Yield the jobs of each call: clients of one group, as many as fit into ``ROOM``."""
        for group in self._groups(jobs):
            most = max(1, ROOM // self._bytes(method, seed, group))
            count = ceil(len(group) / most)
            yield from (group[at * len(group) // count : (at + 1) * len(group) // count] for at in range(count))

    def _groups(self, jobs: Sequence[ClientTask]) -> Iterator[list[ClientTask]]:
        """Yield groups of clients that can share a call: of one round, with downloads that differ in values alone.

        Batch statistics would include padding, so clients whose models have them need equal numbers of rows.
        """
        alike: dict[Any, list[ClientTask]] = defaultdict(list)
        for job, form in zip(jobs, map_consecutive(static_form, [job.download for job in jobs]), strict=True):
            alike[self.pool.models[job.client].name, job.round, form].append(job)
        for group in alike.values():
            if self.pool.client(group[0].client).has_batch_statistics:
                sizes = defaultdict[int, list[ClientTask]](list)
                for job in group:
                    sizes[self.pool.train.size(self.pool.position(job.client))].append(job)
                yield from sizes.values()
            else:
                yield group

    def _bytes(self, method: AnyMethod, seed: int, group: list[ClientTask]) -> int:
        """Return the memory for one client of a group: its padded rows, and the copies of its tensors in training."""
        first = self.pool.client(group[0].client)
        rows = max(self.pool.train.size(self.pool.position(job.client)) for job in group)
        payloads = group[0].download, self.state(method, seed, group[0].client)
        row = first.x[:1].nbytes + first.y[:1].nbytes
        return int(rows * row + COPIES * sum(v.nbytes for p in payloads for v in tensors_of(p).values()))

    def _clients(self, ids: list[ClientId]) -> Client:
        if self._last_batch is None or self._last_batch[0] != ids:
            self._last_batch = ids, self.pool.stack_clients(ids)
        return self._last_batch[1]

    def _train_batch(
        self, method: AnyMethod, seed: int, jobs: list[ClientTask]
    ) -> dict[ClientId, tuple[ClientUpload, ClientResult]]:
        ids = [job.client for job in jobs]
        states = [self.state(method, seed, i) for i in ids]
        down, clients = stack([job.download for job in jobs]), self._clients(ids)
        own, r = (clients, keys(*round_key_parts(seed, jobs[0]), each=ids)), jobs[0].round
        with torch.no_grad(), functional_gradients():
            update = partial(method_calls.client_update, method, r)
            (ups, after), sums = _call_batched(method, update, len(jobs), down, stack(states), *own)
            if isinstance(method, TrainsAfterUpload):
                finish = partial(method_calls.after_upload, method, r)
                after, more = _call_batched(method, finish, len(jobs), down, ups, after, *own)
                sums = sums + more
        uploads, nexts, not_finite = lazy_rows(ups, len(jobs)), unstack(after, len(jobs)), find_nonfinite(after)
        upload_batch = UploadBatch(ups, dict(zip(ids, uploads, strict=True)))
        before = self._scores_before(method, jobs, states)
        outcomes = [ClientUpload(i, up, before.get(i), None, upload_batch) for i, up in zip(ids, uploads, strict=True)]
        results = [
            result._replace(loss=TrainingLoss(*losses))
            for result, losses in zip(
                self._results_of(method, jobs, uploads, nexts, not_finite), sums.tolist(), strict=True
            )
        ]
        if self.upload_filter is not no_filter:
            for at, job in enumerate(jobs):
                sent = self.upload_filter(job, self.pool.client(job.client), uploads[at])
                outcomes[at] = outcomes[at]._replace(upload=sent)
        return dict(zip(ids, zip(outcomes, results, strict=True), strict=True))

    def _scores_before(
        self, method: AnyMethod, jobs: Sequence[ClientTask], states: Sequence[Payload]
    ) -> dict[ClientId, Score | PendingScore]:
        """Return the scores of the personal models before training, of the jobs that request them."""
        found: dict[ClientId, Score | PendingScore] = {}
        sources: dict[ClientId, ModelSource] = {}
        for job, state in zip(jobs, states, strict=True):
            if job.evaluate and job.round.exchange == 0:
                source = ModelSource(job.download, None, state, self.pool.client(job.client))
                known = self._known(method, job, source)
                found |= {} if known is None else {job.client: known}
                sources |= {job.client: source} if known is None else {}
        if sources:
            found |= self._scores(method, sources, thorough=False)
        return found

    def _scores(
        self, method: AnyMethod, sources: Mapping[ClientId, ModelSource], thorough: bool
    ) -> Mapping[ClientId, Score | PendingScore]:
        """Return the scores of personal models, or the models where the scores can wait for those of later rounds."""
        if isinstance(method, PredictsOtherwise) or self.pool.global_test:
            return dict(zip(sources, to_scores(self.evaluate_all(method, sources, thorough)), strict=True))
        evaluate = self._evaluate_thoroughly if thorough else self._evaluate_briefly
        models = [ClientModel(i, method.personal_params(*source)) for i, source in sources.items()]
        return {model.client: PendingScore(model, evaluate) for model in models}

    @cached_property
    def _evaluate_thoroughly(self) -> Callable[[Sequence[ClientModel]], Columns]:
        return partial(evaluate_models, self.pool, batched=True)

    @cached_property
    def _evaluate_briefly(self) -> Callable[[Sequence[ClientModel]], Columns]:
        return partial(evaluate_models, self.pool, thorough=False, batched=True)

    def _results_of(
        self,
        method: AnyMethod,
        jobs: Sequence[ClientTask],
        uploads: Sequence[Payload],
        states: Sequence[Payload],
        not_finite: Collection[int],
    ) -> list[ClientResult]:
        """Return the new states, with the scores of the trained models that are requested."""
        results = [ClientResult(job.client, states[at], None, at in not_finite) for at, job in enumerate(jobs)]
        sources = {
            at: ModelSource(job.download, uploads[at], states[at], self.pool.client(job.client))
            for at, job in enumerate(jobs)
            if scores_result(method, job)
        }
        if sources:
            scores = self._scores(method, {jobs[at].client: source for at, source in sources.items()}, thorough=True)
            for at, source in sources.items():
                score = scores[jobs[at].client]
                results[at] = self._scored_result(method, jobs[at], source, score, at in not_finite)
        return results


def _call_batched(method: AnyMethod, f: Callable[..., T], clients: int, *inputs: Any) -> tuple[T, Tensor]:
    """Call a function of a method once for many clients; return its result and the losses of each client."""
    try:
        return vmap.batched_call(partial(_with_losses, f), clients, *inputs)
    except RuntimeError as reason:
        line = find_user_line(reason)
        if line is None:
            raise
        raise CannotBatch(method, line, reason) from reason


def _with_losses(f: Callable[..., T], *inputs: Any) -> tuple[T, Tensor]:
    """Return the result of ``f``, and the losses of the training steps in it as ``LossMeter.sums`` gives them."""
    losses = LossMeter()
    with measured_by(losses):
        made = f(*inputs)
    return made, losses.sums()
