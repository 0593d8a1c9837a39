"""Run clients at sites: send each exchange as a request. States of clients stay at their sites."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from math import nan
from typing import NamedTuple

from ...clients.evaluation import Score
from ...clients.fingerprints import fingerprint_bytes
from ...clients.state_store import Kept, Store
from ...clients.tasks import ClientResult, ClientTask, ClientUpload, LostClient
from ...core.contract import Contract, exchanges_of
from ...core.method import AnyMethod
from ...core.payloads import Payload
from ...core.problems import Classes
from ...core.serialization import Limits, Unreadable, decode_upload, encode
from ...typing import ClientId
from ...utils.parsing import Json
from ..site.exchange_store import StateRef
from ..transport.protocol import Frame, answers
from ..transport.requests import SiteRequests

Needed = Callable[[], Mapping[ClientId, Collection[Kept]]]  # states that a resumed run may start from
Sizes = Callable[[ClientId, Payload, int], Limits]  # limits of an upload, by client, download and phase
_BRIEF = ("n", Classes.criterion.name, "val")  # deployed runs have classes


class _Asked(NamedTuple):
    """A request for an exchange, with the task that it belongs to."""

    job: ClientTask
    head: Json


class SiteBackend:
    """Runs clients at sites. The store holds references to the last accepted states, not the states."""

    def __init__(
        self, caller: SiteRequests, run: str, store: Store, types: Contract, least: int, needed: Needed, sizes: Sizes
    ):
        self.caller = caller
        self.run = run
        self.store = store
        self._types = types
        self._least = least
        self._needed = needed
        self._sizes = sizes
        self._asked: dict[ClientId, _Asked] = {}
        self._replies: dict[ClientId, Frame] = {}
        self._last = 0  # last phase of a round

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        requests, self._last, self._replies = self._requests(jobs), len(exchanges_of(method)) - 1, {}
        if not jobs:
            return
        arrived: dict[ClientId, Frame] = {}
        answers = self.caller.ask(requests, min(self._least, len(jobs)), _title(jobs[0]))
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
                "phase": job.round.exchange,
                "base": self._base(job.client),
                "keep": [_state_ref(kept) for kept in needed.get(job.client, ())],
                "download": sha256(body).hexdigest(),
                "examine": job.evaluate,
            }
            self._asked[job.client] = _Asked(job, head)
            requests[job.client] = Frame("exchange", head, body)
        return requests

    def _outcome(self, reply: Frame, job: ClientTask) -> ClientUpload:
        if reply.code is not None:
            return ClientUpload(job.client, LostClient(f"site {job.client} answered {reply.code}", reply.code))
        if reply.kind == "flawed":  # The site found that its upload cannot be used.
            return ClientUpload(job.client, None, fingerprint=fingerprint_bytes(b""))
        self._replies[job.client] = reply._replace(body=b"")
        upload = self._stray(reply, job) or self._read(reply, job)
        before = _score(reply.head.get("before"), _BRIEF) if job.evaluate and job.round.exchange == 0 else None
        return ClientUpload(job.client, upload, before, fingerprint_bytes(reply.body))

    def _stray(self, reply: Frame, job: ClientTask) -> Unreadable | None:
        """Return an error if the reply belongs to another request: another run, site, round or phase."""
        asked = answers(self.run, job.client, *job.round)
        for name, value in asked.items():
            if (found := reply.head.get(name)) != value:
                return Unreadable(f"it is of {name} {str(found)[:80]!r}, and {value!r} was requested")
        return None

    def _read(self, reply: Frame, job: ClientTask) -> Payload | Unreadable:
        kind = self._types.exchanges[job.round.exchange].upload
        return decode_upload(kind, reply.body, self._sizes(job.client, job.download, job.round.exchange))

    def results(self) -> Iterator[ClientResult]:
        asked = {i: self._asked[i] for i in self._replies}
        waiting = {i: Frame("finish", asked[i].head) for i, reply in self._replies.items() if "state" not in reply.head}
        if waiting:
            first = next(iter(asked.values())).job
            least = min(self._least, len(waiting))
            self._replies |= dict(self.caller.ask(waiting, least, _title(first)))
        for i, (job, _) in asked.items():
            head = self._replies[i].head
            if isinstance(digest := head.get("state"), str):
                after = _score(head.get("after")) if job.evaluate and job.round.exchange == self._last else None
                yield ClientResult(i, Kept(job.round.t, job.round.exchange, digest), after, bool(head.get("spoilt")))
        self._replies = {}

    def commit(self, results: ClientResult) -> None:
        """Store the reference to an accepted state."""
        self.store.put(results.sender, results.state)

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Kept | None:
        """Return the reference to the state that the site keeps; None if it never took part."""
        kept: Kept | None = self.store.get(i)
        return kept

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Payload) -> Score:
        """Ask the site for its score. All values are NaN if the site does not answer."""
        request = Frame("assess", {"run": self.run, "base": self._base(i)}, encode(download))
        ((_, reply),) = self.caller.ask({i: request}, 0, "The evaluation")
        return _score(reply.head.get("score"))

    def close(self) -> None:
        """Do nothing: the backend holds no processes or files."""

    def end(self, sites: Sequence[ClientId]) -> None:
        """Tell the sites that their last accepted state is the result."""
        requests = {i: Frame("end", {"run": self.run, "base": self._base(i)}) for i in sites}
        timeouts = self.caller.timeouts._replace(timeout=min(60.0, self.caller.timeouts.timeout))
        for _ in self.caller.ask(requests, 0, "The end of the run", timeouts):
            pass

    def _base(self, i: ClientId) -> StateRef | None:
        kept = self.store.get(i)
        return None if kept is None else _state_ref(kept)


def _state_ref(kept: Kept) -> StateRef:
    return StateRef(kept.round, kept.phase, kept.digest)


def _title(job: ClientTask) -> str:
    return f"Round {job.round.t + 1}"


def _score(values: object, names: Sequence[str] = (*_BRIEF, *Classes.details)) -> Score:
    """Return a score that a site sent: all entries of a score and no others, NaN where a number is missing."""
    sent = values if isinstance(values, dict) else {}
    score = {name: float(v) if isinstance(v := sent.get(name), int | float) else nan for name in names}
    return score | {"n": score["n"] if score["n"] >= 0 else 0.0}
