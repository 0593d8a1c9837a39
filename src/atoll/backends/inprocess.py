"""Simulation in one process: a loop over clients, or one vmap for each group of like clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from ..core import Client, ClientId, Predictor
from ..evaluate import Score, accuracy, measure, predict
from ..fleet import Fleet
from ..key import Key, key
from ..mapping import functional_gradients
from ..payload import plain, stack, unstack
from ..rounds import AnyMethod, Job, Outcome, Rest
from ..store import Store

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
        self._rest: list[Callable[[], Rest]] = []

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._rest = []
        for job in jobs:
            yield self._participate(method, seed, job)

    def rest(self) -> Iterator[Rest]:
        for finish in self._rest:
            yield finish()
        self._rest = []

    def commit(self, rest: Rest) -> None:
        self.store.put(rest.sender, rest.state)

    def close(self) -> None:
        """Nothing to give back."""

    def state(self, method: AnyMethod, seed: int, i: ClientId) -> Any:
        """What client ``i`` kept, or what it starts with."""
        kept = self.store.get(i)
        return method.init_client(self.fleet.client(i), key(seed, "init", i)) if kept is None else kept

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
            up, trained = plain(method.local(job.download, state, client, k))

        def finish() -> Rest:
            after = trained
            if method.after_upload:
                with torch.no_grad():
                    after = plain(method.after_upload(job.download, up, trained, client, k))
            return Rest(job.client, after, self._after(method, job, up, after, client))

        # Put off what may overlap with aggregation; do the rest now, so that nothing holds on to the upload.
        self._rest.append(finish if method.after_upload else partial(_given, finish()))
        return Outcome(job.client, self.outlet(job, client, up), before)

    def _before(self, method: AnyMethod, job: Job, state: Any, client: Client) -> Score | None:
        if not job.examine or job.round.phase > 0:
            return None
        return self.examine(method.personal(job.download, None, state, client), job.client, thorough=False)

    def _after(self, method: AnyMethod, job: Job, up: Any, state: Any, client: Client) -> Score | None:
        if not job.examine or job.round.phase < method.phases - 1:
            return None
        return self.examine(method.personal(job.download, up, state, client), job.client)


class Vmap(Loop):
    """Clients with the same model run as one batched call of ``method.local``, as many as fit into ``ROOM``."""

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self._rest = []
        parties = {job.client: party for party in self._parties(method, seed, jobs) for job in party}
        ready: dict[ClientId, tuple[Outcome, Rest]] = {}
        for job in jobs:
            if job.client not in ready:
                ready |= self._together(method, seed, parties[job.client])
            outcome, rest = ready.pop(job.client)
            self._rest.append(partial(_given, rest))
            yield outcome

    def _parties(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Who runs in one call: clients of one group, as many as there is room for; decided by sizes alone."""
        groups: dict[Any, list[Job]] = defaultdict(list)
        for job in jobs:
            groups[self._group(job)].append(job)
        for group in groups.values():
            most = max(1, ROOM // self._bytes(method, seed, group))
            count = ceil(len(group) / most)
            yield from (group[at * len(group) // count : (at + 1) * len(group) // count] for at in range(count))

    def _group(self, job: Job) -> Any:
        """Clients that can share a call: their downloads differ in tensors alone, not in scalars or in what is there.

        Batch statistics know no padding, so models with them need equal sizes.
        """
        client = self.fleet.client(job.client)
        size = len(client.x) if client.has_buffers else 0
        return client.model.name, size, _form(job.download)

    def _bytes(self, method: AnyMethod, seed: int, group: list[Job]) -> int:
        """What a client of the group takes in a call: its padded rows, and all that training keeps of its tensors."""
        first = self.fleet.client(group[0].client)
        rows = max(self.fleet.train.size(self.fleet.position(job.client)) for job in group)
        tensors = tree_leaves((group[0].download, self.state(method, seed, group[0].client)))
        row = first.x[:1].nbytes + first.y[:1].nbytes
        return int(rows * row + COPIES * sum(v.nbytes for v in tensors))

    def _together(self, method: AnyMethod, seed: int, jobs: list[Job]) -> dict[ClientId, tuple[Outcome, Rest]]:
        alone = [self.fleet.client(job.client) for job in jobs]
        states = [self.state(method, seed, job.client) for job in jobs]
        keys = torch.stack([job_key(seed, job) for job in jobs])
        down, clients = _downloads(jobs), padded(alone)
        with torch.no_grad(), functional_gradients():
            ups, after = vmap(method.local)(down, stack(states), clients, keys)
            if method.after_upload:
                after = vmap(method.after_upload)(down, ups, after, clients, keys)
        uploads, nexts = unstack(ups, len(jobs), views=True), unstack(after, len(jobs))
        done = {}
        for job, client, state, up, new in zip(jobs, alone, states, uploads, nexts, strict=True):
            outcome = Outcome(job.client, self.outlet(job, client, up), self._before(method, job, state, client))
            done[job.client] = outcome, Rest(job.client, new, self._after(method, job, up, new, client))
        return done


def _given(rest: Rest) -> Rest:
    return rest


def job_key(seed: int, job: Job) -> Key:
    """The key of a client's work in one round: the same in all its exchanges, so a method folds it for each use."""
    return key(seed, "local", job.round.t, job.client)


def _form(p: Any) -> tuple[Any, ...]:
    """What two payloads of one class have in common if they can be stacked: names of tensors, values of scalars."""
    values = (getattr(p, f.name) for f in fields(p))
    return tuple(tuple(v) if isinstance(v, dict) else v if not isinstance(v, Tensor) else ... for v in values)


def _downloads(jobs: list[Job]) -> Any:
    """A stack of what the clients received; what is the very same tensor for all is repeated without a copy."""
    leaves = zip(*(tree_leaves(job.download) for job in jobs), strict=True)

    def stacked(same: Sequence[Tensor]) -> Tensor:
        alike = all(v is same[0] for v in same)
        return same[0].expand(len(same), *same[0].shape) if alike else torch.stack(list(same))

    return tree_unflatten([stacked(same) for same in leaves], tree_structure(jobs[0].download))


def padded(clients: Sequence[Client]) -> Client:
    """Clients as one, with rows of zeros up to the largest; ``n`` still says how many are real.

    Equal architectures may differ in their initial weights, which training never asks for: the first stands for all.
    """
    x, y = (pad_sequence([getattr(c, name) for c in clients], batch_first=True) for name in ("x", "y"))
    return replace(clients[0], x=x, y=y, n=torch.stack([c.n for c in clients]))
