"""The round loop, the same for every method and every backend."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch

from ..aggregation import fixed_point, robust
from ..aggregation.policy import AggregationPolicy
from ..backends.base import Backend
from ..clients import method_calls
from ..clients.evaluation import Score
from ..clients.server_side import ServerSideStates
from ..clients.state_store import MemoryStore, Store
from ..clients.tasks import (
    LATE,
    NO_FAULTS,
    UNREACHED,
    ClientTask,
    ClientUpload,
    Dropped,
    LostClient,
    Rejection,
    RoundFaults,
    RoundLog,
)
from ..clients.validation.checks import find_type_error
from ..clients.validation.validator import Validator
from ..core.method import AnyMethod, contract
from ..core.payloads import nbytes
from ..core.prng import key
from ..core.replies import Replies
from ..core.schema import UploadError, is_finite
from ..core.task import Reply, Round, Task
from ..core.tree import map_consecutive, plain
from ..typing import ClientId
from ..utils.progress import track

Note = Callable[[Round, ClientUpload, UploadError | None], None]  # told of every upload, and of what is wrong with it


@dataclass(frozen=True)
class RoundPolicy:
    """How a server treats clients and their uploads in a round. By default: it trusts them, as far as types go."""

    checks: Validator | None = None  # without them an upload is judged by its class alone
    excluded: Collection[ClientId] = ()  # absent if sampled
    guard: robust.RobustAggregation | None = None  # in place of means
    fixed: fixed_point.Fixed | None = None  # sums in fixed point
    faults: RoundFaults = NO_FAULTS  # faults to order
    note: Note | None = None  # told of every upload that arrives, once it has been judged

    def judged(self, r: Round, outcome: ClientUpload, fault: UploadError | None) -> None:
        if self.note is not None:
            self.note(r, outcome, fault)


def run_round(
    method: AnyMethod,
    task: Task,
    backend: Backend,
    server: Any,
    *,
    t: int,
    seed: int,
    cohort: Sequence[ClientId],
    evaluate: Collection[ClientId] = (),
    per_client_states: Store | None = None,
    rules: RoundPolicy = RoundPolicy(),
    known: Mapping[ClientId, Score] = MappingProxyType({}),
) -> tuple[Any, RoundLog]:
    """Play one round: broadcast, local training, validation, aggregation.

    Args:
        method: the method that is run.
        task: what the server knows of the federation.
        backend: runs the clients.
        server: the server's state before the round.
        t: the round, counted from 0.
        seed: seed of the run.
        cohort: the clients that were sampled; those that ``rules`` exclude are not asked.
        evaluate: clients whose models are measured before and after training.
        per_client_states: what the server keeps of each client, for methods that do so.
        rules: how the server treats clients and uploads.
        known: latest scores of clients, for those whose models are the same as then if these are in their states.

    Returns:
        The server's state after the round, and what happened in it.
    """
    away, faults = set(rules.excluded), rules.faults
    log = RoundLog(t, [i for i in cohort if i not in away])
    server_side = ServerSideStates(
        method, task, seed, MemoryStore() if per_client_states is None else per_client_states
    )
    _lose(log, faults, lambda i: nbytes(server_side.download(server, i, Round(t))))
    for r in (Round(t, phase) for phase in range(method.phases)):
        # Every download is made before any client runs: no client sees what another one did in this exchange.
        # A client whose upload failed or never came in an earlier exchange of the round is absent from the others.
        absent = log.absent
        present = [i for i in log.cohort if i not in absent]
        jobs = [ClientTask(i, r, server_side.download(server, i, r), i in evaluate, known.get(i)) for i in present]
        for i, size in zip(present, map_consecutive(nbytes, [job.download for job in jobs]), strict=True):
            log.down[i] = log.down.get(i, 0) + size
        outcomes = faults.tamper(track("clients", backend.train(method, seed, jobs), len(jobs)))
        accepted = _accepted(outcomes, _judge(method, jobs, rules.checks, r.phase), rules, log, r)
        replies = server_side.serve_replies(server, accepted, r)
        first = next(replies, None)
        if first is not None:  # without a single valid upload the server stays as it is
            received = Replies(chain([first], replies), AggregationPolicy(rules.guard, rules.fixed, server))
            with torch.no_grad():
                server = plain(method_calls.aggregate(method, server, received, task, r, key(seed, "server", *r)))
        for _ in replies:  # a method may ignore replies; the clients have to run all the same
            pass
        _conclude(backend, log)
    return server, log


def _judge(
    method: AnyMethod, jobs: Sequence[ClientTask], checks: Validator | None, phase: int
) -> Callable[[ClientUpload], UploadError | None]:
    """Who says whether an outcome can be used."""
    downloads, kind = {job.client: job.download for job in jobs}, contract(method).upload
    if checks is None:
        return lambda outcome: find_type_error(outcome.upload, kind)

    def judge(outcome: ClientUpload) -> UploadError | None:
        upload_batch, sender = outcome.upload_batch, outcome.sender
        if upload_batch is not None and upload_batch.uploads.get(sender) is outcome.upload:
            if upload_batch.all_valid is None:
                upload_batch.all_valid = checks.all_valid(
                    upload_batch.uploads, downloads[sender], upload_batch.stack, phase
                )
            if upload_batch.all_valid:
                return None
        return checks.find_error(sender, downloads[sender], outcome.upload, phase)

    return judge


def _lose(log: RoundLog, faults: RoundFaults, size: Callable[[ClientId], int]) -> None:
    """Clients that will not answer; most have received the download, whose size is counted."""
    for i in log.cohort:
        if why := faults.absence(i):
            log.dropped.append(Dropped(i, log.t + 1, why))
            if why != UNREACHED:
                log.down[i] = size(i)


def _accepted(
    outcomes: Iterable[ClientUpload],
    judge: Callable[[ClientUpload], UploadError | None],
    rules: RoundPolicy,
    log: RoundLog,
    r: Round,
) -> Iterator[Reply[Any]]:
    """Uploads that pass, one at a time; a client whose upload fails or comes too late counts as absent."""
    for outcome in outcomes:
        if isinstance(outcome.upload, LostClient):
            log.record_loss(outcome.sender, outcome.upload)
            continue
        fault = judge(outcome)
        up = log.up.get(outcome.sender, 0) + (0 if fault else nbytes(outcome.upload))
        if fault is None and rules.faults.is_late(outcome.sender, up, log.down[outcome.sender]):
            log.dropped.append(Dropped(outcome.sender, log.t + 1, LATE))
            rules.judged(r, outcome, UploadError("upload", "came too late"))
            continue
        rules.judged(r, outcome, fault)
        if fault:
            log.rejected.append(Rejection(outcome.sender, log.t + 1, *fault))
            continue
        log.accepted.append(outcome.sender)
        log.up[outcome.sender] = up
        if outcome.before is not None:
            log.before.setdefault(outcome.sender, outcome.before)
        yield Reply(outcome.sender, outcome.upload)


def _conclude(backend: Backend, log: RoundLog) -> None:
    """Keep the states of the clients whose uploads passed, unless their own training has diverged."""
    absent = log.absent
    for results in track("personal models", backend.results(), len(log.accepted)):
        if results.sender in absent:
            continue
        if isinstance(
            results.state, LostClient
        ):  # after its upload: that counts, and the client is where it was before
            log.lost[results.sender] = results.state.reason
        elif not is_finite(results.state) if results.not_finite is None else results.not_finite:
            log.not_finite.append(results.sender)
        else:
            backend.commit(results)
            if results.after is not None:
                log.after[results.sender] = results.after
                log.lasting |= {results.sender} if results.lasting else set()
