"""Simulation in one process: a loop over clients, or one vmap for each group of like clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_structure

from ..core import Client, ClientId, Predictor
from ..evaluate import Score, accuracy, measure, predict
from ..fleet import Fleet
from ..key import Key, key
from ..mapping import functional_gradients
from ..payload import plain, stack, unstack
from ..rounds import AnyMethod, Job, Outcome, Rest
from ..store import Store

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
        score = measure(logits, test.y) if thorough else {"n": float(len(test.y)), "accuracy": accuracy(logits, test.y)}
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
    """Clients with the same model run as one batched call of ``method.local``."""

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        groups: dict[Any, list[Job]] = defaultdict(list)
        for job in jobs:
            groups[self._group(job)].append(job)
        done = {o.sender: (o, rest) for group in groups.values() for o, rest in self._train_group(method, seed, group)}
        self._rest = [partial(_given, done[job.client][1]) for job in jobs]
        yield from (done[job.client][0] for job in jobs)

    def _group(self, job: Job) -> Any:
        """Clients that can share a call: their downloads differ in tensors alone, not in scalars or in what is there.

        Batch statistics know no padding, so models with them need equal sizes.
        """
        client = self.fleet.client(job.client)
        size = len(client.x) if client.has_buffers else 0
        return client.model.name, size, tree_structure(job.download)

    def _train_group(self, method: AnyMethod, seed: int, jobs: list[Job]) -> Iterator[tuple[Outcome, Rest]]:
        ids = [job.client for job in jobs]
        alone = [self.fleet.client(i) for i in ids]
        size = max(len(c.x) for c in alone)
        # Equal architectures may differ in their initial weights, which training never asks for: one stands for all.
        clients = stack([replace(pad(c, size), model=alone[0].model) for c in alone])
        states = [self.state(method, seed, i) for i in ids]
        keys = torch.stack([job_key(seed, job) for job in jobs])
        down, dim = _downloads(jobs, apart=alone[0].has_buffers)
        with torch.no_grad(), functional_gradients():
            ups, after = vmap(method.local, (dim, 0, 0, 0))(down, stack(states), clients, keys)
            if method.after_upload:
                after = vmap(method.after_upload, (dim, 0, 0, 0, 0))(down, ups, after, clients, keys)
        uploads, nexts = unstack(ups, len(jobs)), unstack(after, len(jobs))
        for job, client, state, up, new in zip(jobs, alone, states, uploads, nexts, strict=True):
            outcome = Outcome(job.client, self.outlet(job, client, up), self._before(method, job, state, client))
            yield outcome, Rest(job.client, new, self._after(method, job, up, new, client))


def _given(rest: Rest) -> Rest:
    return rest


def job_key(seed: int, job: Job) -> Key:
    """The key of a client's work in one round: the same in all its exchanges, so a method folds it for each use."""
    return key(seed, "local", job.round.t, job.client)


def _downloads(jobs: list[Job], apart: bool) -> tuple[Any, int | None]:
    """One download for all, if they are the very same tensors; otherwise a stack of them.

    Running statistics are written into, so with them (``apart``) every client needs its own.
    """
    leaves = [tree_leaves(job.download) for job in jobs]
    shared = all(
        len(own) == len(leaves[0]) and all(a is b for a, b in zip(own, leaves[0], strict=True)) for own in leaves
    )
    return (jobs[0].download, None) if shared and not apart else (stack([job.download for job in jobs]), 0)


def pad(c: Client, size: int) -> Client:
    """Add rows of zeros; ``c.n`` still says how many are real."""

    def grow(v: Tensor) -> Tensor:
        return torch.cat([v, v.new_zeros(size - len(v), *v.shape[1:])])

    return replace(c, x=grow(c.x), y=grow(c.y))
