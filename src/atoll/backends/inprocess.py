"""Simulation in one process: a loop over clients, or one vmap for each group of like clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .. import calls, clientwise
from ..core import Client, ClientId, Method, Predictor
from ..evaluate import DETAILS, Score, accuracy, measure, predict
from ..fleet import Fleet
from ..key import Key, key, keys
from ..mapping import functional_gradients
from ..payload import kinds_of, plain
from ..rounds import AnyMethod, Job, Outcome, Party, Rest
from ..stacks import repeated, rows, stack, unstack
from ..store import Store
from ..validation import not_finite

ROOM = 2**28  # bytes that the clients of one batched call may take
COPIES = 6  # of a client's message and state while it trains: initial and new weights, gradients, momentum, results

# The way out: what leaves a client in place of the upload that its method made. Run where the client runs, on its rows;
# what the client itself uses (its state, its own model) is what the method made.
Outlet = Callable[[Job, Client, Any], Any]


def as_made(job: Job, client: Client, upload: Any) -> Any:
    """The open way out."""
    return upload


class Loop:
    """One client after the other: the reference that every other backend must equal."""

    def __init__(self, fleet: Fleet, store: Store, outlet: Outlet = as_made):
        self.fleet, self.store, self.outlet = fleet, store, outlet
        self._rest: list[Rest | Callable[[], Rest]] = []  # done, or still to be done

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._rest = []
        for job in jobs:
            yield self._participate(method, seed, job)

    def rest(self) -> Iterator[Rest]:
        for rest in self._rest:
            yield rest() if callable(rest) else rest
        self._rest = []

    def commit(self, rest: Rest) -> None:
        self.store.put(rest.sender, rest.state)

    def close(self) -> None:
        """Nothing to give back."""

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """What client ``i`` kept, or what it starts with."""
        kept = self.store.get(i)
        return calls.init_client(method, self.fleet.client(i), key(seed, "init", i)) if kept is None else kept

    def assess(self, method: AnyMethod, seed: int, i: ClientId, download: Any) -> Score:
        state, client = self.state(method, seed, i), self.fleet.client(i)
        return self.examine(method.personal(download, None, state, client), i)

    def examine(self, predictor: Predictor, i: ClientId, thorough: bool = True) -> Score:
        """The exam of client ``i``: its test rows (all measures, or accuracy alone), its validation rows."""
        at = self.fleet.position(i)
        test, val = self.fleet.test[at], self.fleet.val[at]
        logits = predict(predictor, test.x)
        brief = {"n": float(len(test.y)), "accuracy": accuracy(logits, test.y)}
        score = measure(logits, test.y, self.fleet.metrics) if thorough else brief
        score["val"] = accuracy(predict(predictor, val.x), val.y) if len(val.y) else float("nan")
        if self.fleet.global_test:
            everybody = self.fleet.test.all
            score["global"] = accuracy(predict(predictor, everybody.x), everybody.y)
        return score

    def _participate(self, method: AnyMethod, seed: int, job: Job) -> Outcome:
        client, state = self.fleet.client(job.client), self.state(method, seed, job.client)
        before, k = self._before(method, job, state, client), job_key(seed, job)
        with torch.no_grad():
            up, trained = plain(calls.local(method, job.download, state, client, k))

        def finish() -> Rest:
            after = trained
            if method.after_upload:
                with torch.no_grad():
                    after = plain(calls.after_upload(method, job.download, up, trained, client, k))
            return self._rested(method, job, up, after, client)

        # Put off what may overlap with aggregation; do the rest now, so that nothing holds on to the upload.
        self._rest.append(finish if method.after_upload else finish())
        return Outcome(job.client, self.outlet(job, client, up), before)

    def _before(self, method: AnyMethod, job: Job, state: Any, client: Client) -> Score | None:
        if not job.examine or job.round.phase > 0:
            return None
        if job.known is not None and _lasts(method, job, None, state, client):
            return {name: v for name, v in job.known.items() if name not in DETAILS}
        return self.examine(method.personal(job.download, None, state, client), job.client, thorough=False)

    def _rested(
        self, method: AnyMethod, job: Job, up: Any, state: Any, client: Client, spoilt: bool | None = None
    ) -> Rest:
        """With the score of the trained model, if asked for."""
        if not job.examine or job.round.phase < method.phases - 1:
            return Rest(job.client, state, None, spoilt)
        score = self.examine(method.personal(job.download, up, state, client), job.client)
        return Rest(job.client, state, score, spoilt, _lasts(method, job, up, state, client))


class Vmap(Loop):
    """Clients with the same model run as one batched call of ``method.local``, as many as fit into ``ROOM``."""

    _company: tuple[list[ClientId], Client] | None = None  # who ran together last, often the same as next time

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._rest = []
        parties = {job.client: party for party in self._parties(method, seed, jobs) for job in party}
        ready: dict[ClientId, tuple[Outcome, Rest]] = {}
        for job in jobs:
            if job.client not in ready:
                ready |= self._together(method, seed, parties[job.client])
            outcome, rest = ready.pop(job.client)
            self._rest.append(rest)
            yield outcome

    def _parties(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Who runs in one call: clients of one group, as many as there is room for; decided by sizes alone."""
        for group in self._groups(jobs):
            most = max(1, ROOM // self._bytes(method, seed, group))
            count = ceil(len(group) / most)
            yield from (group[at * len(group) // count : (at + 1) * len(group) // count] for at in range(count))

    def _groups(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Clients that can share a call: their downloads differ in tensors alone, not in scalars or in what is there.

        Batch statistics know no padding, so models with them need equal sizes.
        """
        alike: dict[Any, list[Job]] = defaultdict(list)
        for job, form in zip(jobs, repeated(_form, [job.download for job in jobs]), strict=True):
            alike[self.fleet.models[job.client].name, form].append(job)
        for group in alike.values():
            if self.fleet.client(group[0].client).has_buffers:
                sizes = defaultdict[int, list[Job]](list)
                for job in group:
                    sizes[self.fleet.train.size(self.fleet.position(job.client))].append(job)
                yield from sizes.values()
            else:
                yield group

    def _bytes(self, method: AnyMethod, seed: int, group: list[Job]) -> int:
        """What a client of the group takes in a call: its padded rows, and all that training keeps of its tensors."""
        first = self.fleet.client(group[0].client)
        rows = max(self.fleet.train.size(self.fleet.position(job.client)) for job in group)
        tensors = tree_leaves((group[0].download, self.state(method, seed, group[0].client)))
        row = first.x[:1].nbytes + first.y[:1].nbytes
        return int(rows * row + COPIES * sum(v.nbytes for v in tensors))

    def _clients(self, ids: list[ClientId]) -> Client:
        if self._company is None or self._company[0] != ids:
            self._company = ids, self.fleet.together(ids)
        return self._company[1]

    def _together(self, method: AnyMethod, seed: int, jobs: list[Job]) -> dict[ClientId, tuple[Outcome, Rest]]:
        ids = [job.client for job in jobs]
        states = [self.state(method, seed, i) for i in ids]
        down, clients = stack([job.download for job in jobs]), self._clients(ids)
        own = clients, keys(*_use(seed, jobs[0]), each=ids)
        with torch.no_grad(), functional_gradients():
            ups, after = clientwise.together(partial(calls.local, method), len(jobs), down, stack(states), *own)
            if method.after_upload:
                after = clientwise.together(partial(calls.after_upload, method), len(jobs), down, ups, after, *own)
        uploads, nexts, spoilt = rows(ups, len(jobs)), unstack(after, len(jobs)), not_finite(after)
        party = Party(ups, dict(zip(ids, uploads, strict=True)))
        outcomes = [Outcome(i, up, None, None, party) for i, up in zip(ids, uploads, strict=True)]
        rests = [Rest(i, new, None, at in spoilt) for at, (i, new) in enumerate(zip(ids, nexts, strict=True))]
        for at, (job, state) in enumerate(zip(jobs, states, strict=True)):
            if job.examine:
                client = self.fleet.client(job.client)
                outcomes[at] = outcomes[at]._replace(before=self._before(method, job, state, client))
                rests[at] = self._rested(method, job, uploads[at], nexts[at], client, at in spoilt)
            if self.outlet is not as_made:
                sent = self.outlet(job, self.fleet.client(job.client), uploads[at])
                outcomes[at] = outcomes[at]._replace(upload=sent)
        return dict(zip(ids, zip(outcomes, rests, strict=True), strict=True))


def _lasts(method: AnyMethod, job: Job, up: Any, state: Any, client: Client) -> bool:
    """Whether the client predicts by a model that is in its state, so that nothing it receives can change it."""
    if type(method).personal is not Method.personal:
        return False
    own, kept = method.own(job.download, up, state, client), {id(v) for v in tree_leaves(state)}
    return bool(own) and all(id(v) in kept for v in own.values())


def job_key(seed: int, job: Job) -> Key:
    """The key of a client's work in one round: the same in all its exchanges, so a method folds it for each use."""
    return key(*_use(seed, job), job.client)


def _use(seed: int, job: Job) -> tuple[int | str, ...]:
    return seed, "local", job.round.t


def _form(p: Any) -> tuple[Any, ...]:
    """What two payloads of one class have in common if they can be stacked: names of tensors, values of scalars."""
    values = [getattr(p, name) for name in kinds_of(type(p))]
    return tuple([tuple(v) if isinstance(v, dict) else ... if isinstance(v, Tensor) else v for v in values])
