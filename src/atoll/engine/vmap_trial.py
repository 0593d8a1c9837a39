"""Try whether vmap can run the clients of a method, and compare its numbers with those of the loop."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..backends.loop import LoopBackend
from ..backends.vmap import REMEDY, CannotBatch, VmapBackend
from ..clients import method_calls
from ..clients.pool import ClientPool, ClientRows, RowSplits, replace_clients
from ..clients.state_store import MemoryStore
from ..clients.tasks import ClientResult, ClientTask, ClientUpload
from ..core.hooks import HasOptimiser
from ..core.method import AnyMethod, traits_of
from ..core.payloads import Payload, pack
from ..core.prng import key
from ..errors import AtollError
from ..typing import ClientId
from .round import run_round

ROUNDING = 1e-6  # largest difference between the loop and vmap, relative to values above 1
KINK = 1e-2  # likewise for the few values whose ReLU has an input of 0 up to rounding
CLOSE_SHARE = 0.8  # share of payloads that must agree up to rounding


def is_tried(method: AnyMethod) -> bool:
    """Return True for a method from outside the package that does not declare whether vmap can run it."""
    return traits_of(method).vmap is None and not type(method).__module__.startswith("atoll.")


def find_vmap_problem(method: AnyMethod, pool: ClientPool) -> str | None:
    """Run two rounds by vmap and by the loop.

    Args:
        method: the method that is tried.
        pool: the clients, such as ``two_clients(method, pool)``.

    Returns:
        What is wrong with vmap and how to correct it, as sentences; None if both backends agree.
    """
    try:
        gaps = compare_vmap_with_loop(method, pool)
    except CannotBatch as reason:
        return f"vmap cannot run {reason.place}. {REMEDY} Or declare Traits(vmap=False)."
    except AtollError:
        raise
    except Exception as reason:  # Code of a method may raise anything under vmap.
        return f"vmap cannot run it ({type(reason).__name__}: {reason}). {REMEDY} Or declare Traits(vmap=False)."
    close = sum(gap <= ROUNDING for gap in gaps)
    if close >= CLOSE_SHARE * len(gaps) and max(gaps, default=0.0) <= KINK:
        return None
    return (
        f"vmap gives other numbers than the loop (they differ by up to {max(gaps):.1e}). Samples of padding must count "
        "nothing: weigh by batch.w, and compare positions with client.n. Or declare Traits(vmap=False)."
    )


def compare_vmap_with_loop(method: AnyMethod, pool: ClientPool, rounds: int = 2) -> list[float]:
    """Return the differences of all uploads and states between vmap and the loop, from the same inputs."""
    both, task, per_client_states = _BothBackends(pool), pool.task(), MemoryStore()
    with torch.no_grad():
        server: Any = method_calls.init_server(method, task, key(0))
    for t in range(rounds):
        server, _ = run_round(
            method, task, both, server, t=t, seed=0, cohort=task.clients, per_client_states=per_client_states
        )
    return both.gaps


def largest_gap(a: Payload, b: Payload) -> float:
    """Return the largest difference between two payloads, relative to values above 1; infinity for another form."""
    first, second = pack(a).tensors, pack(b).tensors
    if {name: v.shape for name, v in first.items()} != {name: v.shape for name, v in second.items()}:
        return float("inf")
    pairs = [(first[name].double(), second[name].double()) for name in first if first[name].numel()]
    return max((float(((x - y) / x.abs().clamp(min=1)).abs().max()) for x, y in pairs), default=0.0)


class _BothBackends(LoopBackend):
    """A loop that repeats all work by vmap, from the same states and messages, and collects the differences."""

    def __init__(self, pool: ClientPool):
        super().__init__(pool, MemoryStore())
        self.gaps: list[float] = []
        self._vmap = VmapBackend(pool, self.store)

    def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
        uploads = list(super().train(method, seed, jobs))
        batched = self._vmap.train(method, seed, jobs)
        self.gaps += [largest_gap(a.upload, b.upload) for a, b in zip(uploads, batched, strict=True)]
        yield from uploads

    def results(self) -> Iterator[ClientResult]:
        results = list(super().results())
        self.gaps += [largest_gap(a.state, b.state) for a, b in zip(results, self._vmap.results(), strict=True)]
        yield from results


def two_clients(method: AnyMethod, pool: ClientPool) -> ClientPool:
    """Return two clients of the first architecture with a few rows each, of which one client has fewer."""
    batch = method.optim.batch_size if isinstance(method, HasOptimiser) else 32
    ids = [i for i in pool.ids if pool.models[i].name == pool.models[pool.ids[0]].name][:2]
    sizes = [2 * batch, batch + batch // 2]
    kept = [
        torch.arange(start, start + min(size, pool.train.size(pool.position(i))))
        for i, size, start in ((i, size, _start(pool, i)) for i, size in zip(ids, sizes, strict=False))
    ]
    rows = torch.cat(kept)
    train = ClientRows(pool.train.all.x[rows], pool.train.all.y[rows], [len(own) for own in kept])
    return replace_clients(pool, ids, RowSplits(train, pool.val, pool.test), like=ids[0])


def _start(pool: ClientPool, i: ClientId) -> int:
    """Return the position of a client's first row among the rows of all clients."""
    return sum(pool.train.size(at) for at in range(pool.position(i)))
