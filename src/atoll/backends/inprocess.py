"""Simulation in one process: a loop over clients, or one vmap for each group of like clients."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from ..core import Client, ClientId, Predictor
from ..evaluate import Score, accuracy, measure, predict
from ..fleet import Fleet
from ..key import Key, key
from ..payload import stack, unstack
from ..run import AnyMethod, Job, Outcome
from ..store import Store
from ..train import functional_gradients


class Loop:
    """One client after the other: the reference that every other backend must equal."""

    def __init__(self, fleet: Fleet, store: Store):
        self.fleet, self.store = fleet, store

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job in jobs:
            yield self._participate(method, seed, job)

    def commit(self, outcome: Outcome) -> None:
        self.store.put(outcome.sender, outcome.state)

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
        i, client, state = job.client, self.fleet.client(job.client), self.state(method, seed, job.client)
        before = self._before(method, job, state, client)
        k = job_key(seed, job)
        with torch.no_grad():
            up, state = method.local(job.download, state, client, k)
            if method.after_upload:
                state = method.after_upload(job.download, up, state, client, k)
        return Outcome(i, up, state, before, self._after(method, job, up, state, client))

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
        done = {o.sender: o for group in groups.values() for o in self._train_group(method, seed, group)}
        yield from (done[job.client] for job in jobs)

    def _group(self, job: Job) -> Any:
        """Clients that can share a call. Batch statistics know no padding, so models with them need equal sizes."""
        model = self.fleet.models[job.client]
        size = self.fleet.train.size(self.fleet.position(job.client)) if model.has_buffers else 0
        return model.name, size

    def _train_group(self, method: AnyMethod, seed: int, jobs: list[Job]) -> Iterator[Outcome]:
        ids = [job.client for job in jobs]
        alone = [self.fleet.client(i) for i in ids]
        size = max(len(c.x) for c in alone)
        # Equal architectures may differ in their initial weights, which training never asks for: one stands for all.
        clients = stack([replace(pad(c, size), model=alone[0].model) for c in alone])
        states = [self.state(method, seed, i) for i in ids]
        keys = torch.stack([job_key(seed, job) for job in jobs])
        down, dim = _downloads(jobs)
        with torch.no_grad(), functional_gradients():
            ups, after = vmap(method.local, (dim, 0, 0, 0))(down, stack(states), clients, keys)
            if method.after_upload:
                after = vmap(method.after_upload, (dim, 0, 0, 0, 0))(down, ups, after, clients, keys)
        uploads, nexts = unstack(ups, len(jobs)), unstack(after, len(jobs))
        for job, client, state, up, new in zip(jobs, alone, states, uploads, nexts, strict=True):
            before = self._before(method, job, state, client)
            yield Outcome(job.client, up, new, before, self._after(method, job, up, new, client))


def job_key(seed: int, job: Job) -> Key:
    """The key of a client's work in one exchange."""
    return key(seed, "local", *job.round, job.client)


def _downloads(jobs: list[Job]) -> tuple[Any, int | None]:
    """One download for all, if they are the very same tensors; otherwise a stack of them."""
    leaves = [tree_leaves(job.download) for job in jobs]
    shared = all(
        len(own) == len(leaves[0]) and all(a is b for a, b in zip(own, leaves[0], strict=True)) for own in leaves
    )
    return (jobs[0].download, None) if shared else (stack([job.download for job in jobs]), 0)


def pad(c: Client, size: int) -> Client:
    """Add rows of zeros; ``c.n`` still says how many are real."""

    def grow(v: Tensor) -> Tensor:
        return torch.cat([v, v.new_zeros(size - len(v), *v.shape[1:])])

    return replace(c, x=grow(c.x), y=grow(c.y))
