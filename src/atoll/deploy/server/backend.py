"""Run clients at sites: send each exchange as a request. States of clients stay at their sites."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from ...clients.evaluation import Score
from ...clients.fingerprints import fingerprint_bytes
from ...clients.measured_model import STATE, MeasuredModel
from ...clients.model_store import ModelStore
from ...clients.score_table import to_columns
from ...clients.state_store import RemoteState, Store
from ...clients.tasks import ClientResult, ClientTask, ClientUpload, LostClient
from ...core.contract import Contract, exchanges_of
from ...core.group_scores import Columns
from ...core.hooks import TrainsAfterUpload
from ...core.method import AnyMethod
from ...core.payloads import Payload
from ...core.problems import Problem
from ...core.serialization import Limits, Unreadable, decode_upload, encode
from ...typing import ClientId
from ...utils.parsing import Json
from ..site.exchange_store import StateRef
from ..transport.protocol import Frame, answers
from ..transport.requests import SiteRequests
from .reply_checks import BadReply, read_digest, read_score

Needed = Callable[[], Mapping[ClientId, Collection[RemoteState]]]  # states that a resumed run may start from
Sizes = Callable[[ClientId, Payload, int], Limits]  # limits of an upload, by client, download and exchange


class _Asked(NamedTuple):
    """A request for an exchange, with the task that it belongs to."""

    job: ClientTask
    head: Json


class SiteBackend:
    """Runs clients at sites. The store holds references to the last accepted states, not the states."""

    def __init__(
        self,
        caller: SiteRequests,
        run: str,
        store: Store,
        types: Contract,
        least: int,
        needed: Needed,
        sizes: Sizes,
        test_rows: Mapping[ClientId, int],
        models: ModelStore,
        problem: Problem,
    ):
        self.caller = caller
        self.run = run
        self.store = store
        self._types = types
        self._least = least
        self._needed = needed
        self._sizes = sizes
        self._test_rows = test_rows
        self._models = models
        self._problem = problem
        self._asked: dict[ClientId, _Asked] = {}
        self._replies: dict[ClientId, Frame] = {}
        self._last = 0  # last exchange of a round
        self._trains_after_upload = False

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        requests, self._last, self._replies = self._requests(jobs), len(exchanges_of(method)) - 1, {}
        self._trains_after_upload = isinstance(method, TrainsAfterUpload)
        if not jobs:
            return
        arrived: dict[ClientId, Frame] = {}
        sizes = {job.client: self._limits(job).size for job in jobs}
        answers = self.caller.ask(requests, min(self._least, len(jobs)), _title(jobs[0]), upload_bytes=sizes)
        for job in jobs:
            while job.client not in arrived:
                site, reply = next(answers)
                arrived[site] = reply
            yield self._outcome(arrived.pop(job.client), job)

    def _requests(self, jobs: Sequence[ClientTask]) -> dict[ClientId, Frame]:
        needed, bodies = self._needed(), dict[int, bytes]()  # A download that all clients get is encoded once.
        requests = {}
        for job in jobs:
            if id(job.download) not in bodies:
                bodies[id(job.download)] = encode(job.download)
            body = bodies[id(job.download)]
            head = {
                "run": self.run,
                "round": job.round.t,
                "exchange": job.round.exchange,
                "base": self._base(job.client),
                "keep": sorted(
                    {_state_ref(kept) for kept in (*needed.get(job.client, ()), *self._measured(job.client))}
                ),
                "download": sha256(body).hexdigest(),
                "evaluate": job.evaluate,
            }
            self._asked[job.client] = _Asked(job, head)
            requests[job.client] = Frame("exchange", head, body)
        return requests

    def _outcome(self, reply: Frame, job: ClientTask) -> ClientUpload:
        if reply.code is not None:
            return ClientUpload(job.client, LostClient(f"site {job.client} answered {reply.code}", reply.code))
        if reply.kind == "flawed":  # The site found that its upload cannot be used.
            return ClientUpload(job.client, None, fingerprint=fingerprint_bytes(b""))
        if stray := self._stray(reply, job):
            return ClientUpload(job.client, stray, fingerprint=fingerprint_bytes(reply.body))
        try:
            before = self._before(reply, job)
            if self._results_of(reply, job) is None and not self._trains_after_upload:
                raise BadReply("no state")
        except BadReply as reason:
            return ClientUpload(job.client, LostClient(f"site {job.client} sent nonsense: {reason}", "failed"))
        upload = self._read(reply, job)
        if not isinstance(upload, Unreadable):  # Otherwise the site would be asked for a result that is not used.
            self._replies[job.client] = reply._replace(body=b"")
        return ClientUpload(job.client, upload, before, fingerprint_bytes(reply.body))

    def _before(self, reply: Frame, job: ClientTask) -> Score | None:
        """Return the score before training, if one was requested."""
        if not job.evaluate or job.round.exchange > 0:
            return None
        return read_score(reply.head.get("before"), self._test_rows[job.client], self._problem, brief=True)

    def _results_of(self, reply: Frame, job: ClientTask) -> ClientResult | None:
        """Return the result that a reply holds; None if personal training goes on after the upload."""
        if "state" not in reply.head:
            return None
        kept = RemoteState(job.round.t, job.round.exchange, read_digest(reply.head["state"]))
        after = None
        if job.evaluate and job.round.exchange == self._last:
            after = read_score(reply.head.get("after"), self._test_rows[job.client], self._problem)
        model = MeasuredModel(STATE) if after is not None and self._models.on else None
        return ClientResult(job.client, kept, after, bool(reply.head.get("not_finite")), model)

    def _stray(self, reply: Frame, job: ClientTask) -> Unreadable | None:
        """Return an error if the reply is no upload, or belongs to another run, site, round or exchange."""
        if reply.kind != "upload":
            return Unreadable(f"it is a frame of kind {reply.kind[:80]!r}")
        asked = answers(self.run, job.client, *job.round)
        for name, value in asked.items():
            if (found := reply.head.get(name)) != value:
                return Unreadable(f"it is of {name} {str(found)[:80]!r}, and {value!r} was requested")
        return None

    def _read(self, reply: Frame, job: ClientTask) -> Payload | Unreadable:
        kind = self._types.exchanges[job.round.exchange].upload
        return decode_upload(kind, reply.body, self._limits(job))

    def _limits(self, job: ClientTask) -> Limits:
        return self._sizes(job.client, job.download, job.round.exchange)

    def results(self) -> Iterator[ClientResult]:
        asked = {i: self._asked[i] for i in self._replies}
        waiting = {i: Frame("finish", asked[i].head) for i, reply in self._replies.items() if "state" not in reply.head}
        if waiting:
            first = next(iter(asked.values())).job
            least = min(self._least, len(waiting))
            self._replies |= dict(self.caller.ask(waiting, least, _title(first)))
        for i, (job, _) in asked.items():
            try:
                result = self._results_of(self._replies[i], job)
            except BadReply as reason:
                result = ClientResult(i, LostClient(f"site {i} sent nonsense: {reason}", "failed"))
            if result is not None:
                yield result
        self._replies = {}

    def commit(self, results: ClientResult) -> None:
        """Store the reference to an accepted state."""
        self._models.put(results.sender, results.model)
        self.store.put(results.sender, results.state)

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> RemoteState | None:
        """Return the reference to the state that the site keeps; None if it never took part."""
        kept: RemoteState | None = self.store.get(i)
        return kept

    def assess(self, method: AnyMethod, seed: int, downloads: Mapping[ClientId, Payload]) -> Columns:
        """Ask sites for their scores. All values are NaN if a site does not answer."""
        return to_columns([self._assess(i, download) for i, download in downloads.items()])

    def _assess(self, i: ClientId, download: Payload) -> Score:
        request = Frame("assess", {"run": self.run, "base": self._base(i)}, encode(download))
        ((_, reply),) = self.caller.ask({i: request}, 0, "The evaluation")
        try:
            return read_score(reply.head.get("score"), self._test_rows[i], self._problem)
        except BadReply:
            return read_score(None, self._test_rows[i], self._problem)

    def close(self) -> None:
        """Do nothing: the backend holds no processes or files."""

    def end(self, sites: Sequence[ClientId]) -> None:
        """Tell the sites that their last accepted state is the result, and which models were measured."""
        requests = {
            i: Frame("end", {"run": self.run, "base": self._base(i), "models": self._model_refs(i)}) for i in sites
        }
        timeouts = self.caller.timeouts._replace(timeout=min(60.0, self.caller.timeouts.timeout))
        for _ in self.caller.ask(requests, 0, "The end of the run", timeouts):
            pass

    def _measured(self, i: ClientId) -> list[RemoteState]:
        """Return the states behind the measured models of a site."""
        found = (self._models.find(i, which) for which in ("best", "last"))
        return [payloads[0] for _, payloads in filter(None, found)]

    def _model_refs(self, i: ClientId) -> Json:
        """Return the round and the state of each measured model of a site."""
        rounds = self._models.rounds
        found = {which: self._models.find(i, which) for which in ("best", "last")}
        return {
            which: [rounds.number(which), _state_ref(model[1][0])]
            for which, model in found.items()
            if model is not None
        }

    def _base(self, i: ClientId) -> StateRef | None:
        kept = self.store.get(i)
        return None if kept is None else _state_ref(kept)


def _state_ref(kept: RemoteState) -> StateRef:
    return StateRef(kept.round, kept.exchange, kept.digest)


def _title(job: ClientTask) -> str:
    return f"Round {job.round.t + 1}"
