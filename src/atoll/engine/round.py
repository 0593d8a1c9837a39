"""Run one round of federated learning, the same way for every method and every backend."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from ..aggregation import fixed_point, robust
from ..aggregation.staleness import StalenessWeight
from ..backends.base import Backend
from ..clients.evaluation import Score
from ..clients.failures import ClientFailure, raise_if_all_failed
from ..clients.server_side import ClientServers, ServerSideStates
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
    Start,
)
from ..clients.validation.checks import find_type_error
from ..clients.validation.validator import Validator
from ..core.contract import contract, exchanges_of
from ..core.method import AnyMethod
from ..core.optim.training_loss import TrainingLoss
from ..core.payloads import Payload, nbytes
from ..core.schema import UploadError, constraints_of, is_finite
from ..core.task import Reply, Round, Task
from ..core.tree import map_consecutive
from ..typing import ClientId
from ..utils.progress import track
from .server_step import aggregate_replies, discount_replies

OnUpload = Callable[[Round, ClientUpload, UploadError | None], None]  # receives every upload, and its error if any


@dataclass(frozen=True)
class RoundPolicy:
    """The server's treatment of clients and uploads in a round.

    Args:
        checks: validates uploads; None checks only the types of uploads.
        excluded: clients that take no part if sampled.
        guard: robust aggregation in place of means.
        fixed: sums in fixed point.
        faults: simulated faults.
        staleness: weight of stale uploads; None uses them as they were sent.
        on_upload: called with every upload that arrives, after validation.
    """

    checks: Validator | None = None
    excluded: Collection[ClientId] = ()
    guard: robust.RobustAggregation | None = None
    fixed: fixed_point.Fixed | None = None
    faults: RoundFaults = NO_FAULTS
    staleness: StalenessWeight | None = None
    on_upload: OnUpload | None = None

    def report(self, r: Round, upload: ClientUpload, error: UploadError | None) -> None:
        """Pass a validated upload to ``on_upload``."""
        if self.on_upload is not None:
            self.on_upload(r, upload, error)


def run_round(
    method: AnyMethod,
    task: Task,
    backend: Backend,
    server: Payload | ClientServers,
    *,
    t: int,
    seed: int,
    cohort: Sequence[ClientId],
    evaluate: Collection[ClientId] = (),
    per_client_states: Store | None = None,
    policy: RoundPolicy = RoundPolicy(),
    known: Mapping[ClientId, Score] = MappingProxyType({}),
    starts: Mapping[ClientId, Start] = MappingProxyType({}),
    versions: Mapping[int, Payload] = MappingProxyType({}),
    budgets: Mapping[ClientId, int] = MappingProxyType({}),
) -> tuple[Any, RoundLog]:
    """Run one round: broadcast, local training, validation, aggregation.

    Args:
        method: the method that is run.
        task: what the server knows of the federation.
        backend: runs the clients.
        server: the server's state before the round, or those of all clients if there is no server.
        t: the round, counted from 0.
        seed: seed of the run.
        cohort: the clients that were sampled; clients that ``policy`` excludes take no part.
        evaluate: clients to score before and after training.
        per_client_states: the server's states for its clients, for methods that keep them.
        policy: the server's treatment of clients and uploads.
        known: latest scores of clients, valid as long as their states do not change.
        starts: clients of the cohort that started in an earlier round.
        versions: the server's states that these clients started from, by version.
        budgets: numbers of batches of the training after uploads, where these are bounded.

    Returns:
        The server's state after the round, and the record of the round.
    """
    excluded = set(policy.excluded)
    log = RoundLog(t, [i for i in cohort if i not in excluded], budgets=budgets)
    log.starts |= {i: starts[i] for i in log.cohort if i in starts}
    server_side = ServerSideStates(
        method, task, seed, MemoryStore() if per_client_states is None else per_client_states
    )

    def make_job(i: ClientId, r: Round) -> ClientTask:
        version = log.version(i)
        start = Round(version, r.exchange)
        download = server_side.download(server if version == t else versions[version], i, start)
        return ClientTask(i, start, download, i in evaluate, known.get(i), budgets.get(i))

    _drop_absent(log, policy.faults, lambda i: nbytes(server_side.download(server, i, Round(t))))
    for r in (Round(t, at) for at in range(len(exchanges_of(method)))):
        # Make every download before any client runs, so that no client sees another one's work in this exchange.
        # A client without an accepted upload in an earlier exchange of the round takes no part in later ones.
        absent = log.absent if r.exchange == 0 else set(log.cohort) - set(log.accepted) | log.absent
        present = [i for i in log.cohort if i not in absent]
        jobs = [make_job(i, r) for i in present]
        for i, size in zip(present, map_consecutive(nbytes, [job.download for job in jobs]), strict=True):
            log.down[i] = log.down.get(i, 0) + size
        uploads = policy.faults.tamper(track("clients", backend.train(method, seed, jobs), len(jobs)))
        failures: list[ClientFailure] = []
        check = _upload_check(method, jobs, policy.checks, r.exchange)
        accepted = _accept(uploads, check, policy, log, r, failures)
        if policy.staleness is not None:
            now = partial(server_side.download, server, r=r)
            accepted = discount_replies(policy.staleness, accepted, jobs, now, constraints_of(method))
        replies = server_side.serve_replies(server, accepted, r)
        first = next(replies, None)
        # Without a single valid upload, the server's state does not change.
        if first is not None:
            answers = chain([first], replies)
            first = None  # The first upload is freed as the others are, before the last client has trained.
            server = aggregate_replies(
                method, server, answers, task, r, seed=seed, guard=policy.guard, fixed=policy.fixed
            )
        # A method may ignore replies, but all clients have to run.
        for _ in replies:
            pass
        raise_if_all_failed(failures, len(jobs), t + 1)
        _commit_results(backend, log)
    return server, log


def _upload_check(
    method: AnyMethod, jobs: Sequence[ClientTask], checks: Validator | None, exchange: int
) -> Callable[[ClientUpload], UploadError | None]:
    """Return the function that checks an upload of this exchange."""
    downloads, kind = {job.client: job.download for job in jobs}, contract(method).exchanges[exchange].upload
    if checks is None:
        return lambda upload: find_type_error(upload.upload, kind)

    def check(outcome: ClientUpload) -> UploadError | None:
        upload_batch, sender = outcome.upload_batch, outcome.sender
        if upload_batch is not None and upload_batch.uploads.get(sender) is outcome.upload:
            if upload_batch.all_valid is None:
                upload_batch.all_valid = checks.all_valid(
                    upload_batch.uploads, downloads[sender], upload_batch.stack, exchange
                )
            if upload_batch.all_valid:
                return None
        return checks.find_error(sender, downloads[sender], outcome.upload, exchange)

    return check


def _drop_absent(log: RoundLog, faults: RoundFaults, size: Callable[[ClientId], int]) -> None:
    """Record the clients that will not answer. Counts the download of each client that was reached."""
    for i in log.cohort:
        if why := faults.absence(i):
            log.dropped.append(Dropped(i, log.t + 1, why))
            if why != UNREACHED:
                log.down[i] = size(i)


def _accept(
    uploads: Iterable[ClientUpload],
    check: Callable[[ClientUpload], UploadError | None],
    policy: RoundPolicy,
    log: RoundLog,
    r: Round,
    failures: list[ClientFailure],
) -> Iterator[Reply[Payload]]:
    """Yield valid uploads one at a time, and record rejected, late and lost ones. Adds to ``failures``."""
    for arrived in uploads:
        outcome = arrived._replace(staleness=log.t - log.version(arrived.sender))
        if isinstance(outcome.upload, LostClient):
            log.record_loss(outcome.sender, outcome.upload)
            continue
        if isinstance(outcome.upload, ClientFailure):
            failures.append(outcome.upload)
            log.rejected.append(Rejection(outcome.sender, log.t + 1, "upload", outcome.upload.reason))
            continue
        error = check(outcome)
        up = log.up.get(outcome.sender, 0) + (0 if error else nbytes(outcome.upload))
        if error is None and policy.faults.is_late(outcome.sender, up, log.down[outcome.sender]):
            log.dropped.append(Dropped(outcome.sender, log.t + 1, LATE))
            policy.report(r, outcome, UploadError("upload", "came too late"))
            continue
        policy.report(r, outcome, error)
        if error:
            log.rejected.append(Rejection(outcome.sender, log.t + 1, *error))
            continue
        log.accepted.append(outcome.sender)
        log.up[outcome.sender] = up
        if outcome.before is not None:
            log.before.setdefault(outcome.sender, outcome.before)
        yield Reply(outcome.sender, outcome.upload, outcome.staleness)


def _commit_results(backend: Backend, log: RoundLog) -> None:
    """Commit the next states of the clients with accepted uploads, except states that hold NaN or infinity."""
    absent, worked = log.absent, 0
    failures: list[ClientFailure] = []
    for results in track("personal models", backend.results(), len(log.accepted)):
        if results.sender in absent:
            continue
        worked += 1
        if isinstance(results.state, ClientFailure):
            failures.append(results.state)
            log.lost[results.sender] = f"its state {results.state.reason}"
        elif isinstance(results.state, LostClient):
            # The work after the upload was lost: the upload counts, and the client keeps its previous state.
            log.lost[results.sender] = results.state.reason
        elif results.not_finite or (results.not_finite is None and not is_finite(results.state)):
            log.not_finite.append(results.sender)
        else:
            backend.commit(results)
            if results.loss is not None:
                log.losses[results.sender] = log.losses.get(results.sender, TrainingLoss()) + results.loss
            if results.after is not None:
                log.after[results.sender] = results.after
                if results.lasting:
                    log.lasting.add(results.sender)
    raise_if_all_failed(failures, worked, log.t + 1)
